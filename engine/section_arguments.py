"""Arguments of an engine that are dicts here and sections of the configuration for code of the
ecosystem (vLLM): dicts whose keys can be read and set as attributes too.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from .compilation_section import CompilationConfig, PassConfig
from .config_sections import StructuredOutputsConfig

_OF_THE_WORKER = ("ir_op_priority", "kernels", "ops", "static_forward_context")


class SectionArguments(dict[str, Any]):
    """What is read and was not given is the section's default; a list or a dict among them may be
    changed in its place.

    Attributes raise:
        AttributeError: the section has no such name that can be given.
    """

    section: ClassVar[type[Any]]
    names: ClassVar[tuple[str, ...]]

    def __getattr__(self, name: str) -> Any:
        self._check(name)
        value = self.get(name)
        if value is None:
            value = getattr(self.section(), name)
        elif name == "pass_config" and isinstance(value, dict):
            value = PassConfig(**value)
        else:
            value = self._as_section_has_it(name, value)
        if not isinstance(value, int | str):
            self[name] = value  # what is changed in its place
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name)
        self[name] = value

    def __delattr__(self, name: str) -> None:
        """What it is without being given again."""
        self._check(name)
        self.pop(name, None)

    def said(self) -> dict[str, Any]:
        """What is not as the section has it anyway."""
        plain = self.section()
        return {
            name: value
            for name, value in self.items()
            if name not in self.names or value != getattr(plain, name)
        }

    def _as_section_has_it(self, name: str, value: Any) -> Any:
        made = self.section()
        setattr(made, name, value)
        return getattr(made, name)

    def _check(self, name: str) -> None:
        if name not in self.names:
            what = self.section.__name__
            raise AttributeError(
                f"{what} among the engine's arguments has no {name!r}; "
                f"expected one of {', '.join(self.names)}"
            )


class CompilationArguments(SectionArguments):
    section = CompilationConfig
    names = (
        *(each.name for each in fields(CompilationConfig) if each.name not in _OF_THE_WORKER),
        "level",
    )


class StructuredOutputsArguments(SectionArguments):
    section = StructuredOutputsConfig
    names = tuple(each.name for each in fields(StructuredOutputsConfig))


SECTIONS: dict[str, type[SectionArguments]] = {
    "compilation_config": CompilationArguments,
    "structured_outputs_config": StructuredOutputsArguments,
}
