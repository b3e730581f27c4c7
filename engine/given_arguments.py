"""The engine's arguments in the forms that code of the ecosystem (vLLM) gives them, made into those
that settings have. What a value may be is looked at elsewhere.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from .section_arguments import SECTIONS, SectionArguments

if TYPE_CHECKING:
    from .engine_args import EngineArgs


def take_forms(args: EngineArgs) -> None:
    """``None`` is what an argument is without being given; one name is a tuple of one; a section of
    the configuration is what it says beyond its defaults, with the section's names as attributes,
    and a number for compiling is the mode.
    """
    for each in fields(args):
        if getattr(args, each.name) is None:
            setattr(args, each.name, _default(each))
    names: Any = args.served_model_name
    if isinstance(names, str):
        args.served_model_name = (names,)
    compilation: Any = args.compilation_config
    if type(compilation) is int:
        args.compilation_config = {"mode": compilation}
    for name, kind in SECTIONS.items():
        section = getattr(args, name)
        if is_dataclass(section):
            section = _what_it_says(section)
        if isinstance(section, dict) and not isinstance(section, SectionArguments):
            setattr(args, name, kind(section))


def _what_it_says(section: Any) -> dict[str, Any]:
    values = {each: getattr(section, each.name) for each in fields(section) if each.init}
    return {each.name: value for each, value in values.items() if value != _default(each)}


def _default(each: Field[Any]) -> Any:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return None if each.default is MISSING else each.default
