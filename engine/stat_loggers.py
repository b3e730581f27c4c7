"""``StatLoggers``: every stat logger of every plugin, each guarded alone.

What the loggers do with the numbers is theirs; the built-in ones are in ``plugins_builtin``. The
numbers are ``stats``'.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from hookserve.hookspecs import Claim, Denied, Host, PluginError, RequestRecord
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import describe_error, exc_info_of
from hookserve.hookspecs.guard import OBSERVE_FAILURES, OBSERVE_WINDOW_S
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.plugin_thread import build_within

from .messages import SchedulerStats
from .stat_logger_base import AggregateStatLoggerBase
from .stats import IterationStats
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOG_INTERVAL_S = 10.0
MAX_CALL_S = 1.0
"""Requests wait for each call of a logger; one that takes longer has failed."""


class GuardedLogger:
    """One logger and its owner, and what its ``record`` is given behind the statistics. A failure
    is logged once and counted; after ``OBSERVE_FAILURES`` within ``OBSERVE_WINDOW_S`` the logger is
    called no more."""

    def __init__(self, plugin: Plugin, name: str, instance: Any) -> None:
        self.plugin = plugin
        self.name = name
        self.instance = instance
        self.more_args, self.more_named = _behind_the_statistics(instance)
        self.num_failures = 0
        self.is_off = False
        self._recent: deque[float] = deque(maxlen=OBSERVE_FAILURES)

    @property
    def owner(self) -> str:
        return self.plugin.identity

    def call(self, method: str, *args: Any, optional: bool = False, **named: Any) -> None:
        def do(instance: Any) -> None:
            function = getattr(instance, method, None)
            if function is not None or not optional:
                getattr(instance, method)(*args, **named)

        self.ask(f"{method}()", do)

    def ask(self, where: str, question: Callable[[Any], T]) -> T | None:
        """What ``question`` finds in the logger itself; ``None`` if it fails, or is off.

        Args:
            where: what the log calls it if it fails.
        """
        if self.is_off:
            return None
        started = time.monotonic()
        try:
            with enter(self.plugin):
                answer = question(self.instance)
            elapsed_s = time.monotonic() - started
            if elapsed_s > MAX_CALL_S and not self.plugin.is_builtin:
                late = f"it took {elapsed_s:.2g} s, in which every request waited"
                self._failed(where, TimeoutError(f"{late}; it has {MAX_CALL_S:g} s"))
            return answer
        except caught() as error:
            self._failed(where, error)
            return None

    def _failed(self, where: str, error: BaseException) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            logger.warning(
                "plugin %s: stat logger %s failed in %s; further failures are only counted",
                self.owner,
                self.name,
                where,
                exc_info=exc_info_of(error),
            )
        now = time.monotonic()
        self._recent.append(now)
        if len(self._recent) == OBSERVE_FAILURES and now - self._recent[0] <= OBSERVE_WINDOW_S:
            self.is_off = True
            logger.error(
                "plugin %s: stat logger %s is switched off after %d failures in %.0f s",
                self.owner,
                self.name,
                OBSERVE_FAILURES,
                OBSERVE_WINDOW_S,
            )


_FORMS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((None, 0), {}),
    ((), {"mm_cache_stats": None, "engine_idx": 0}),
    ((), {"engine_idx": 0}),
    ((), {}),
)
"""What ``record`` is given behind the statistics, by place or by name; earlier forms have less."""


def _behind_the_statistics(instance: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first of the forms that the logger takes; if it takes none, it fails at the first."""
    try:
        signature = inspect.signature(instance.record)
    except (AttributeError, TypeError, ValueError):  # there is none, or it does not say
        return _FORMS[0]
    for args, named in _FORMS:
        try:
            signature.bind(None, None, *args, **named)
        except TypeError:
            continue
        return args, named
    return _FORMS[0]


class Replaced(NamedTuple):
    """A logger that gave way to one that derives from it."""

    target: Any
    build: Callable[[], GuardedLogger]


class StatLoggers:
    """All loggers of one engine; every call comes from the thread that reads what it sends. The
    server's own are called first, so that what others do to the numbers is not in its own."""

    def __init__(
        self, loggers: Iterable[GuardedLogger] = (), replaced: Iterable[Replaced] = ()
    ) -> None:
        self._loggers = _own_first(loggers)
        self._replaced = tuple(replaced)

    @classmethod
    def build(
        cls, host: Host, vllm_config: VllmConfig, of_program: Iterable[Any] = ()
    ) -> StatLoggers:
        """Build every registered logger as ``cls(vllm_config, 0)``; one that is of all engines is
        given ``[0]``. A built-in one gives way to those that derive from it, if it says so
        (``yields_to_subclasses``).

        One that cannot be built, or not within the time of a start-up hook, puts its plugin out
        (``host.deny``).

        Args:
            of_program: further ones, which the program that makes the engine has handed over.

        Raises:
            RequiredPluginError: that plugin is required.
            whatever the constructor of one of the program's raises.
        """
        built = [_build_of_program(target, vllm_config) for target in of_program]
        replaced: list[Replaced] = []
        claims = host.registry("stat_logger").claims()
        for claim in sorted(claims, key=lambda each: each.plugin.is_builtin):
            if claim.plugin.state != "active":
                continue
            try:
                target = host.registry("stat_logger").resolve(claim.name)
                build = partial(_build_one, host, claim, target, vllm_config)
                if _is_replaced(target, built):
                    replaced.append(Replaced(target, build))
                    continue
                built.append(build())
            except PluginError as error:
                host.deny(Denied(claim.owner, "front", error.stage, error.message))
            except caught() as error:
                failure = f"stat logger {claim.name}: {describe_error(error)}"
                host.deny(Denied(claim.owner, "front", "run", failure))
        # A plugin that failed in one logger is out with all of them.
        return cls((each for each in built if each.plugin.state == "active"), replaced)

    def drop_inactive(self) -> None:
        """Forget the loggers of plugins that are out by now: they may fail in another process. What
        had given way to them alone is built in their place."""
        active = [each for each in self._loggers if each.plugin.state == "active"]
        back = [each for each in self._replaced if not _is_replaced(each.target, active)]
        self._replaced = tuple(each for each in self._replaced if each not in back)
        self._loggers = _own_first((*active, *(each.build() for each in back)))

    def __iter__(self) -> Iterator[GuardedLogger]:
        return iter(self._loggers)

    def record(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """Hand one step's statistics to every logger."""
        for each in self._loggers:
            each.call("record", scheduler, iteration, *each.more_args, **each.more_named)

    def log_engine_initialized(self) -> None:
        for each in self._loggers:
            each.call("log_engine_initialized")

    def request_finished(self, record: RequestRecord) -> None:
        for each in self._loggers:
            each.call("request_finished", record, optional=True)

    def shutdown(self) -> None:
        """Let all of them end; none is called afterwards."""
        loggers, self._loggers, self._replaced = self._loggers, (), ()
        for each in loggers:
            each.call("shutdown", optional=True)

    def log(self) -> None:
        for each in self._loggers:
            each.call("log")

    async def log_forever(self, interval_s: float) -> None:
        """Call ``log()`` of every logger each ``interval_s`` seconds, until cancelled or until
        there is none."""
        while self._loggers:
            await asyncio.sleep(interval_s)
            self.log()


def _own_first(loggers: Iterable[GuardedLogger]) -> tuple[GuardedLogger, ...]:
    return tuple(sorted(loggers, key=lambda each: not each.plugin.is_builtin))


def _is_replaced(target: Any, built: Iterable[GuardedLogger]) -> bool:
    """Whether a logger that was built does the work of ``target`` too."""
    if not getattr(target, "yields_to_subclasses", False):
        return False
    return any(
        isinstance(each.instance, target) and each.plugin.state == "active" for each in built
    )


def _build_one(host: Host, claim: Claim, target: Any, vllm_config: VllmConfig) -> GuardedLogger:
    """A plugin's constructor runs in a thread: it cannot be interrupted, but left alone."""

    def build() -> GuardedLogger:
        with host.enter(claim.plugin):
            instance = target(vllm_config, _engines_of(target))
        return GuardedLogger(claim.plugin, claim.name, instance)

    if claim.plugin.is_builtin:
        return build()
    budget_s = host.settings.startup_hook_timeout_s
    built: GuardedLogger = build_within(budget_s, claim.owner, f"stat logger {claim.name}", build)
    return built


def _build_of_program(target: Any, vllm_config: VllmConfig) -> GuardedLogger:
    name = getattr(target, "__qualname__", type(target).__qualname__)
    owner = Plugin(f"program:{name}", name, "program", load=lambda: None, state="active")
    return GuardedLogger(owner, name, target(vllm_config, _engines_of(target)))


def _engines_of(target: Any) -> int | list[int]:
    """What a logger is given behind the configuration."""
    of_all = isinstance(target, type) and issubclass(target, AggregateStatLoggerBase)
    return [0] if of_all else 0
