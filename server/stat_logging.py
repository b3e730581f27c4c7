"""``StatLoggers``: every stat logger of every plugin, each guarded alone.

What the loggers do with the numbers is theirs; the built-in ones are in ``plugins_builtin``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from hookserve.engine.messages import SchedulerStats
from hookserve.engine.stats import IterationStats
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Denied, Host, PluginError, RequestRecord
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin import Plugin

from .metrics import render

logger = logging.getLogger("hookserve.server.stat_logging")

MAX_FAILURES = 5
FAILURE_WINDOW_S = 60.0


class GuardedLogger:
    """One logger and its owner. A failure is logged once and counted; after ``MAX_FAILURES``
    within ``FAILURE_WINDOW_S`` the logger is called no more."""

    def __init__(self, plugin: Plugin, name: str, instance: Any) -> None:
        self.plugin = plugin
        self.name = name
        self.instance = instance
        self.num_failures = 0
        self.is_off = False
        self._recent: deque[float] = deque(maxlen=MAX_FAILURES)
        self._hidden_metrics: set[str] = set()

    @property
    def owner(self) -> str:
        return self.plugin.identity

    def call(self, method: str, *args: Any, optional: bool = False) -> None:
        if self.is_off:
            return
        try:
            with enter(self.plugin):
                function = getattr(self.instance, method, None)
                if function is not None or not optional:
                    getattr(self.instance, method)(*args)
        except caught() as error:
            self._failed(f"{method}()", error)

    def metrics_text(self, taken: set[str]) -> bytes:
        """The text of the Prometheus registry that the logger offers as its attribute
        ``registry``, without metrics whose names are taken; its own names are taken then."""
        if self.is_off:
            return b""
        try:
            with enter(self.plugin):
                registry = getattr(self.instance, "registry", None)
                if not hasattr(registry, "collect"):
                    return b""
                text, hidden = render(registry, taken)
        except caught() as error:
            self._failed("its metrics", error)
            return b""
        for name in hidden:
            if name not in self._hidden_metrics:
                self._hidden_metrics.add(name)
                logger.warning(
                    "plugin %s: the metric %s of stat logger %s is not shown: the name is taken",
                    self.owner,
                    name,
                    self.name,
                )
        return text

    def _failed(self, where: str, error: BaseException) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            logger.warning(
                "plugin %s: stat logger %s failed in %s; further failures are only counted",
                self.owner,
                self.name,
                where,
                exc_info=error,
            )
        now = time.monotonic()
        self._recent.append(now)
        if len(self._recent) == MAX_FAILURES and now - self._recent[0] <= FAILURE_WINDOW_S:
            self.is_off = True
            logger.error(
                "plugin %s: stat logger %s is switched off after %d failures in %.0f s",
                self.owner,
                self.name,
                MAX_FAILURES,
                FAILURE_WINDOW_S,
            )


class StatLoggers:
    """All loggers of one engine; called on the event loop."""

    def __init__(self, loggers: Iterable[GuardedLogger] = ()) -> None:
        self._loggers = tuple(loggers)

    @classmethod
    def build(cls, host: Host, vllm_config: VllmConfig) -> StatLoggers:
        """Build every registered logger as ``cls(vllm_config, 0)``.

        One that cannot be built puts its plugin out (``host.deny``).

        Raises:
            RequiredPluginError: that plugin is required.
        """
        registry = host.registry("stat_logger")
        built = []
        for claim in registry.claims():
            if claim.plugin.state != "active":
                continue
            try:
                target = registry.resolve(claim.name)
                with host.enter(claim.plugin):
                    instance = target(vllm_config, 0)
            except PluginError as error:
                host.deny(Denied(claim.owner, "front", error.stage, error.message))
            except caught() as error:
                failure = f"stat logger {claim.name}: {type(error).__name__}: {error}"
                host.deny(Denied(claim.owner, "front", "run", failure))
            else:
                built.append(GuardedLogger(claim.plugin, claim.name, instance))
        # A plugin that failed in one logger is out with all of them.
        return cls(each for each in built if each.plugin.state == "active")

    def drop_inactive(self) -> None:
        """Forget the loggers of plugins that are out by now: they may fail in another process."""
        self._loggers = tuple(each for each in self._loggers if each.plugin.state == "active")

    def __iter__(self) -> Iterator[GuardedLogger]:
        return iter(self._loggers)

    def record(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """Hand one step's statistics to every logger."""
        for each in self._loggers:
            each.call("record", scheduler, iteration, None, 0)

    def log_engine_initialized(self) -> None:
        for each in self._loggers:
            each.call("log_engine_initialized")

    def request_finished(self, record: RequestRecord) -> None:
        for each in self._loggers:
            each.call("request_finished", record, optional=True)

    def shutdown(self) -> None:
        for each in self._loggers:
            each.call("shutdown", optional=True)

    def metrics_text(self) -> bytes:
        """The metrics of all loggers in Prometheus' text format. Of two with one name the
        built-in one is shown, or the first."""
        taken: set[str] = set()
        builtin_first = sorted(self._loggers, key=lambda each: not each.plugin.is_builtin)
        return b"".join([each.metrics_text(taken) for each in builtin_first])

    async def log_forever(self, interval_s: float) -> None:
        """Call ``log()`` of every logger each ``interval_s`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            for each in self._loggers:
                each.call("log")
