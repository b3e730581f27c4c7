"""Which class the scheduler is: found by name or path, refused where it cannot be driven, and what
it does without. How its methods are called is ``scheduler_guard``'s.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.errors import PluginError
from hookserve.hookspecs.first_call import code_of

from .errors import ConfigError
from .plugin_code import as_plugin
from .scheduler import Scheduler
from .scheduler_guard import SchedulerGuard
from .scheduler_interface import CALLED_WITH, CAPABILITIES, SchedulerInterface
from .vllm_config import VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

logger = logging.getLogger(__name__)

DEFAULT = "default"
HOOKS = ("order_waiting", "select_victim", "after_schedule")
"""Capabilities that are hooks: where nobody implements one nothing is lost without it."""


def make_scheduler(
    vllm_config: VllmConfig, num_blocks: int, block_size: int, host: Host
) -> tuple[SchedulerInterface, SchedulerGuard]:
    """An instance of ``scheduler_config.scheduler_cls``, a name or a class path, and what its
    methods are called through.

    Raises:
        UnknownNameError: a name that nobody registered; with the nearest ones.
        hookserve.hookspecs.PluginError: a class that cannot be imported, that lacks a method, or
            that raises; the method's name is in the message.
        ConfigError: settings that this scheduler cannot work with.
    """
    name = vllm_config.scheduler_config.scheduler_cls
    found = host.registry("scheduler").resolve(name)
    claim = host.registry("scheduler").get(name)
    owner = None if claim is None else claim.plugin
    max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
    guard = SchedulerGuard(name, owner, max_tokens, is_checked=found is not Scheduler)
    fault = find_fault(found)
    if fault is not None:
        identity = name if owner is None else owner.identity
        raise PluginError(identity, "register", f"scheduler '{name}': {fault}")
    lacks = [each for each in CAPABILITIES if each not in capabilities_of(found)]
    if "priority" in lacks and vllm_config.scheduler_config.policy == "priority":
        raise ConfigError(
            f"--scheduling-policy priority: {guard.who} knows no priorities; use fcfs, or another "
            "--scheduler-cls"
        )
    if owner is None or not owner.is_builtin:
        logger.warning("%s: a scheduler's interface is not stable between versions", guard.who)
    _tell(guard.who, found, lacks, host)
    with as_plugin(host, owner, guard.who):
        make = getattr(found, "make", found)
        made: SchedulerInterface = make(vllm_config, num_blocks, block_size, host.calls)
    return made, guard


def find_fault(found: Any) -> str | None:
    """Why the engine cannot drive what was found, in words; ``None``: it can."""
    if not isinstance(found, type):
        return f"{found!r:.120} is not a class"
    abstract: frozenset[str] = getattr(found, "__abstractmethods__", frozenset())
    called_with: Mapping[str, int] = getattr(found, "called_with", CALLED_WITH)
    missing = [
        method
        for method in called_with
        if method in abstract or not callable(getattr(found, method, None))
    ]
    if missing:
        return (
            f"{found.__qualname__} lacks {', '.join(missing)}; expected every method of "
            f"{SchedulerInterface.__module__}.{SchedulerInterface.__qualname__}"
        )
    faults = (_wrong_signature(found, method, count) for method, count in called_with.items())
    return next((fault for fault in faults if fault is not None), None)


def _wrong_signature(found: type, method: str, num_arguments: int) -> str | None:
    """What does not fit the way in which the method is called; ``None``: nothing."""
    function = inspect.getattr_static(found, method)
    try:
        signature = inspect.signature(getattr(found, method))
    except ValueError:  # of compiled code that does not say
        return None
    count = num_arguments + (not isinstance(function, classmethod | staticmethod))
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return (
            f"{found.__qualname__}.{method}{signature} is called with "
            f"{num_arguments or 'no'} arguments"
        )
    return None


def capabilities_of(found: type) -> frozenset[str]:
    """What the class states, without what it loses by the parts of the default that it replaces
    (``Scheduler.carried_by``)."""
    lost: set[str] = set()
    for cls in found.__mro__:
        stated = vars(cls).get("capabilities")
        if stated is not None:
            return frozenset(stated) - lost
        lost |= {
            capability
            for capability, way in Scheduler.carried_by.items()
            if any(_breaks(cls, way[at:]) for at in range(len(way)))
        }
    return frozenset()


def _breaks(cls: type, way: Sequence[str]) -> bool:
    """Whether the class has a method with the first name that goes on by none of the names, and
    holds no function of such a name, as wrappers hold what they replaced."""
    method = vars(cls).get(way[0])
    inner = inspect.unwrap(method) if callable(method) else None
    if not isinstance(inner, FunctionType):
        return False
    return _names(code_of(inner)).isdisjoint(way) and _held(inner).isdisjoint(way)


def _held(function: FunctionType) -> set[str]:
    """The functions that this one refers to by variables, by their own names."""
    names = _names(code_of(function))
    held = [value for name, value in list(function.__globals__.items()) if name in names]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is not set yet
            held.append(cell.cell_contents)
    return {each.__name__ for each in held if inspect.isroutine(each)}


def _names(code: CodeType) -> set[str]:
    """Every attribute and global that the code uses, also in functions inside it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _tell(who: str, found: type, lacks: list[str], host: Host) -> None:
    """Say what an operator loses by this class."""
    for name in HOOKS:
        plugins = [guard.plugin.identity for guard in host.calls.hooks[name].guards]
        if name in lacks and plugins:
            logger.warning(
                "%s does not ask the hook %s, which %s implements", who, name, " and ".join(plugins)
            )
    if lacks:
        without = "; ".join(f"{name} ({CAPABILITIES[name]})" for name in lacks)
        logger.warning("%s, %s, does without: %s", who, found.__qualname__, without)
