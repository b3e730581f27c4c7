"""Which classes of logits processors there are, in front and in each worker: those that plugins
declare, then those that the operator named by their path. What they do is ``processor_set``'s, what
they say about parameters ``processor_checks``'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.errors import PluginError, describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.settings import Denied
from hookserve.hookspecs.targets import check_path, import_target, target_text

from .errors import ConfigError, cut
from .logits_processor import LogitsProcessor
from .plugin_class import PluginClass
from .plugin_code import telling_of_torch
from .sampling_params import SamplingParams
from .slot_logits_processor import SlotLogitsProcessor

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

KIND = "logits_processor"
SHAPES = (LogitsProcessor, SlotLogitsProcessor)


class ProcessorClass(PluginClass):
    noun = "logits processor"

    @property
    def constructor(self) -> str:
        """What the class is built with, for a message."""
        by_slots = issubclass(self.cls, SlotLogitsProcessor)
        last = "req_states" if by_slots else "device, is_pin_memory"
        return f"{self.cls.__name__}(vllm_config, {last})"

    def check(self, params: SamplingParams) -> None:
        """As ``LogitsProcessor.validate_params``."""
        self.cls.validate_params(params)

    @property
    def is_wanted(self) -> bool:
        """Whether the operator asked for it, so that nothing may go on without it."""
        return self.plugin is None or self.plugin.must_work

    def refuse(self, host: Host, what: str, error: BaseException) -> None:
        """It cannot be used: its plugin is out.

        Raises:
            RequiredPluginError: that plugin must work.
            ConfigError: it belongs to no plugin.
        """
        refuse(host, self.plugin, f"{self.label} {what}: {describe_error(error)}")


def refuse(host: Host, plugin: Plugin | None, message: str, stage: str = "run") -> None:
    if plugin is None:
        raise ConfigError(f"{message}; it is what --logits-processors asked for")
    process = "front" if "front" in host.roles else "worker"
    host.deny(Denied(plugin.identity, process, stage, message))


def find_processors(host: Host, paths: Iterable[str]) -> list[ProcessorClass]:
    """Import all of them, in the order in which they are applied. What cannot be imported, or is of
    no known shape, puts its plugin out.

    Args:
        paths: of ``--logits-processors``.

    Raises:
        RequiredPluginError: that plugin must work.
        ConfigError: a path at which there is none.
    """
    found = []
    for claim in host.registry(KIND).claims():
        try:
            with telling_of_torch(f"logits processor {claim.name!r}", claim.owner):
                cls = _of_known_shape(host.registry(KIND).resolve(claim.name))
        except (PluginError, TypeError) as error:
            said = error.message if isinstance(error, PluginError) else str(error)
            stage = error.stage if isinstance(error, PluginError) else "register"
            refuse(host, claim.plugin, f"logits processor {claim.name}: {said}", stage)
        else:
            found.append(ProcessorClass(claim.name, claim.plugin, cls))
    known = {each.cls for each in found}
    for path in dict.fromkeys(paths):
        cls = _import_path(host, path)
        if cls not in known:
            found.append(ProcessorClass(path, None, cls))
            known.add(cls)
    return [each for each in found if each.plugin is None or each.plugin.state == "active"]


def _import_path(host: Host, path: str) -> type[Any]:
    """
    Raises:
        ConfigError: there is no processor at the path.
    """
    try:
        with telling_of_torch(f"logits processor {path!r}", "--logits-processors"):
            return _of_known_shape(host.adapters.import_path(path))
    except caught() as error:
        said = str(error) if isinstance(error, TypeError) else describe_error(error)
        raise ConfigError(f"--logits-processors {path}: {said}") from error


def _of_known_shape(found: Any) -> type[Any]:
    """
    Raises:
        TypeError: the object is no class of a known shape.
    """
    if isinstance(found, type) and issubclass(found, SHAPES):
        return found
    known = " or ".join(f"{shape.__module__}.{shape.__name__}" for shape in SHAPES)
    raise TypeError(f"{cut(repr(found))} is not a subclass of {known}")


def processor_paths(given: Iterable[Any]) -> tuple[str, ...]:
    """The operator's processors by their paths; a class becomes its own.

    Raises:
        ConfigError: what is neither, or a class that cannot be found by its name.
    """
    paths = []
    for each in [given] if isinstance(given, str) else given:
        path = target_text(each) if isinstance(each, type) else each
        fault = check_path(path) if isinstance(path, str) else "expected a class or its path"
        if isinstance(each, type) and (fault is not None or _import_or_none(path) is not each):
            fault = "the class cannot be imported by its name; define it at the top of a module"
        if fault is not None:
            raise ConfigError(f"--logits-processors {cut(repr(each))}: {fault}")
        paths.append(path)
    return tuple(paths)


def _import_or_none(path: str) -> Any:
    try:
        return import_target(path)
    except ImportError:
        return None
