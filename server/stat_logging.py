"""``StatLoggers``: every stat logger of every plugin, each guarded alone.

What the loggers do with the numbers is theirs; the built-in ones are in ``plugins_builtin``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hookserve.engine.messages import SchedulerStats
from hookserve.engine.stats import IterationStats
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Denied, Host, PluginError, RequestRecord

logger = logging.getLogger("hookserve.server.stat_logging")

MAX_FAILURES = 5
FAILURE_WINDOW_S = 60.0


class GuardedLogger:
    """One logger and its owner. A failure is logged once and counted; after ``MAX_FAILURES``
    within ``FAILURE_WINDOW_S`` the logger is called no more."""

    def __init__(self, owner: str, name: str, instance: Any) -> None:
        self.owner = owner
        self.name = name
        self.instance = instance
        self.num_failures = 0
        self.is_off = False
        self._recent: deque[float] = deque(maxlen=MAX_FAILURES)

    def call(self, method: str, *args: Any, optional: bool = False) -> None:
        if self.is_off:
            return
        try:
            function: Callable[..., Any] | None
            if optional:
                function = getattr(self.instance, method, None)
                if function is None:
                    return
            else:
                function = getattr(self.instance, method)
            function(*args)
        except (Exception, SystemExit) as error:
            self._failed(method, error)

    def _failed(self, method: str, error: BaseException) -> None:
        self.num_failures += 1
        if self.num_failures == 1:
            logger.warning(
                "plugin %s: stat logger %s failed in %s(); further failures are only counted",
                self.owner,
                self.name,
                method,
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
            except (Exception, SystemExit) as error:
                failure = f"stat logger {claim.name}: {type(error).__name__}: {error}"
                host.deny(Denied(claim.owner, "front", "run", failure))
            else:
                built.append((claim.plugin, GuardedLogger(claim.owner, claim.name, instance)))
        # A plugin that failed in one logger is out with all of them.
        return cls(each for plugin, each in built if plugin.state == "active")

    def drop_inactive(self, host: Host) -> None:
        """Forget the loggers of plugins that are out by now: they may fail in another process."""
        out = {plugin.identity for plugin in host.plugins if plugin.state != "active"}
        self._loggers = tuple(each for each in self._loggers if each.owner not in out)

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

    def metric_registries(self) -> list[Any]:
        """The Prometheus registries that loggers offer as their attribute ``registry``."""
        found = (getattr(each.instance, "registry", None) for each in self._loggers)
        return [registry for registry in found if hasattr(registry, "collect")]

    async def log_forever(self, interval_s: float) -> None:
        """Call ``log()`` of every logger each ``interval_s`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            for each in self._loggers:
                each.call("log")
