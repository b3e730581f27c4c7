"""Each entry point of a ``vllm.*`` group as a plugin whose object implements the matching hook.

Which of them are wanted is ``selection``'s. What stands behind an endpoint is ``endpoints``'.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

from hookserve.hookspecs import Named, Plugin, QueuedRequest, hookimpl
from hookserve.hookspecs.discovery import find_module_file, read_metadata
from hookserve.hookspecs.plugin import Facts
from hookserve.hookspecs.self_registration import call_once
from hookserve.hookspecs.types import Role

from . import endpoints
from .distributions import is_called_vllm, is_vllm_itself, ported_distributions
from .general import GeneralPlugin

ADAPTER = "vllm"

GENERAL = "vllm.general_plugins"
PLATFORM = "vllm.platform_plugins"
IO_PROCESSOR = "vllm.io_processor_plugins"
STAT_LOGGER = "vllm.stat_logger_plugins"
ENDPOINT = endpoints.GROUP
LOGITS_PROCESSOR = "vllm.logits_processors"
VICTIM_SELECTOR = "vllm.victim_selector"
"""Only forks of vLLM read it."""

_A_BUILD = "its distribution: it installs vllm/__init__.py, as builds of vLLM itself do"

_LIKENESS = 0.75
"""From here on a group's name is taken for a slip of the pen, from 0 to 1."""


class PlatformPlugin:
    """A function that answers the class path of a platform, or ``None``: not on this machine. It is
    called once in a process, also where the module of another plugin asks before all are asked."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @hookimpl
    def platform(self) -> Any:
        return call_once(self._function)


class StatLoggerPlugin:
    """A class of stat loggers."""

    def __init__(self, logger_class: type) -> None:
        self._class = logger_class

    @hookimpl
    def stat_logger(self) -> type:
        return self._class


class IOProcessorPlugin:
    """A function that answers the class path of an IO processor, or ``None``: not available."""

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self._name = name
        self._function = function

    @hookimpl
    def io_processor(self) -> Named | None:
        path = self._function()
        return None if path is None else Named(self._name, path)


class LogitsProcessorPlugin:
    """The path of a class of logits processors; who needs the class imports it."""

    def __init__(self, entry: EntryPoint) -> None:
        self._entry = entry

    @hookimpl
    def logits_processor(self) -> Named:
        return Named(self._entry.name, f"{self._entry.module}:{self._entry.attr}")


class VictimSelectorPlugin:
    """A function of the running requests, or an object with such a ``select_victim``, that answers
    one of them, its id, or ``None``."""

    def __init__(self, select: Callable[[list[QueuedRequest]], Any]) -> None:
        self._select = select

    @hookimpl
    def select_victim(self, running: list[QueuedRequest]) -> Any:
        chosen = self._select(running)
        return chosen.request_id if isinstance(chosen, QueuedRequest) else chosen


class Group(NamedTuple):
    """How the entry points of one group become plugins."""

    hook: str
    roles: tuple[Role, ...]
    load: Callable[[EntryPoint], Any]
    """Imports what the entry point names and returns what is registered in its place."""


def _load_general(entry: EntryPoint) -> GeneralPlugin:
    return GeneralPlugin(entry.value, _function(entry))


def _load_platform(entry: EntryPoint) -> PlatformPlugin:
    return PlatformPlugin(_function(entry))


def _load_stat_logger(entry: EntryPoint) -> StatLoggerPlugin:
    from .stat_loggers import stat_logger_class  # the engine's configuration comes with it

    return StatLoggerPlugin(stat_logger_class(entry.name, entry.load()))


def _load_io_processor(entry: EntryPoint) -> IOProcessorPlugin:
    return IOProcessorPlugin(entry.name, _function(entry))


def _load_victim_selector(entry: EntryPoint) -> VictimSelectorPlugin:
    found = entry.load()
    if isinstance(found, type):
        found = found()
    select = getattr(found, "select_victim", found)
    if not callable(select):
        raise TypeError(
            f"{entry.value} is {_words(found)}; expected a function of the running requests, or a "
            "class with select_victim(running)"
        )
    return VictimSelectorPlugin(select)


GROUPS: dict[str, Group] = {
    GENERAL: Group("register_by_call", ("front", "engine", "worker", "inspector"), _load_general),
    PLATFORM: Group("platform", ("front", "engine", "worker", "inspector"), _load_platform),
    STAT_LOGGER: Group("stat_logger", ("front",), _load_stat_logger),
    ENDPOINT: Group("endpoint", ("front",), endpoints.load),
    IO_PROCESSOR: Group("io_processor", ("front",), _load_io_processor),
    LOGITS_PROCESSOR: Group("logits_processor", ("front", "worker"), LogitsProcessorPlugin),
    VICTIM_SELECTOR: Group("select_victim", ("engine",), _load_victim_selector),
}


def make_plugins(entries: Sequence[EntryPoint]) -> list[Plugin]:
    """A plugin for each entry point; none is imported. Those of vLLM's own are left out, without a
    word where its distribution has its name."""
    ported = ported_distributions()
    others = (each for each in entries if each.dist is None or not is_called_vllm(each.dist))
    return [_make(entry, ported) for entry in others]


def _make(entry: EntryPoint, ported: set[str]) -> Plugin:
    distribution, version, _, fault = read_metadata(entry.dist)
    group = GROUPS.get(entry.group)
    plugin = Plugin(
        identity=f"{distribution}:{entry.group}:{entry.name}",
        name=entry.name,
        group=entry.group,
        load=entry.load if group is None else lambda: group.load(entry),
        distribution=distribution,
        version=version,
        adapter=ADAPTER,
        fault=fault,
    )
    if group is None or is_vllm_itself(entry.dist):
        plugin.facts = Facts(hooks=())
        plugin.block(_unknown(entry.group) if group is None else _A_BUILD)
        return plugin
    plugin.facts = Facts(roles=frozenset(group.roles), hooks=(group.hook,))
    fault_of_value = _fault_of(entry)
    if fault_of_value is not None:
        plugin.fault = fault or fault_of_value
        return plugin
    plugin.module = entry.module
    plugin.file = find_module_file(entry.module)
    if distribution in ported:
        plugin.state = "superseded"
        plugin.reason = f"{distribution} has entry points of the group hookserve, which count"
    return plugin


def _fault_of(entry: EntryPoint) -> str | None:
    try:
        if entry.attr:
            return None
    except (AttributeError, AssertionError):
        pass  # what importlib.metadata raises for a value that it cannot read
    return f"its value {entry.value!r} is not of the form 'module:attribute'"


def _unknown(group: str) -> str:
    near = difflib.get_close_matches(group, [*GROUPS], n=1, cutoff=_LIKENESS)
    if near:
        return f"its group: there is none called {group}; did you mean {near[0]}?"
    return f"its group: only forks of vLLM read {group}, and this host does not"


def _function(entry: EntryPoint) -> Callable[[], Any]:
    """What the entry point names, if it can be called without arguments.

    Raises:
        TypeError: it cannot.
        whatever the import raises.
    """
    found = entry.load()
    if not callable(found):
        raise TypeError(f"{entry.value} is {_words(found)}; expected a function without arguments")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise TypeError(f"{entry.value} would not run when it is called; expected a plain function")
    function: Callable[[], Any] = found
    try:
        signature = inspect.signature(function)
    except ValueError:
        return function  # compiled code that does not tell
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(f"{entry.value}{signature} is called without arguments: {error}") from error
    return function


def _words(found: Any) -> str:
    kind = "the class" if isinstance(found, type) else f"a {type(found).__name__},"
    return f"{kind} {getattr(found, '__qualname__', None) or repr(found)[:80]}"
