"""``HookMetrics``: what plugins' hooks cost and how often they failed, in every process.

The counters are those of the plugin reports; of the calls at each step one in 64 is timed. Built-in
plugins are left out: their hooks run at the start alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric, SummaryMetricFamily

from hookserve.engine.plugin_reports import EngineReports
from hookserve.hookspecs import Host
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.report import HookReport, ProcessReport

from .metrics import PREFIX

PATIENCE_S = 0.25
"""So long a scrape waits for the engine. In a longer step the last answer is shown, and the one
that comes after the step is kept for the next scrape."""
ASK_TIMEOUT_S = 30.0

_LABELS = ("plugin", "hook", "process")


class HookMetrics:
    """A Prometheus registry (``collect``); ``refresh`` asks the engine's processes."""

    def __init__(self, host: Host, reports: EngineReports) -> None:
        self._host = host
        self._reports = reports
        self._known: dict[str, ProcessReport] = {}
        self._asking: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Learn what the engine and its workers have counted, if plugins have hooks there. One
        question is on its way at a time, however often this is called."""
        if not any(map(_acts_behind_front, self._host.plugins)):
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="hook metrics")
        await asyncio.wait({self._asking}, timeout=PATIENCE_S)

    async def _ask(self) -> None:
        for report in await self._reports.ask(ASK_TIMEOUT_S):
            if report.problem is None:
                self._known[report.process] = report

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def collect(self) -> Iterator[Metric]:
        seconds = SummaryMetricFamily(
            PREFIX + "hook_seconds", "seconds of the calls that were timed", labels=_LABELS
        )
        errors = CounterMetricFamily(
            PREFIX + "hook_errors", "calls of hooks that failed", labels=_LABELS
        )
        for process, plugin, hook in self._called():
            values = (plugin, hook.name, process)
            seconds.add_metric(values, count_value=hook.sampled, sum_value=hook.sampled_s)
            errors.add_metric(values, hook.errors)
        return iter((seconds, errors))

    def _called(self) -> Iterable[tuple[str, str, HookReport]]:
        """Process, identity and report of every hook that was called or has failed."""
        for process in (self._host.report(), *self._known.values()):
            for plugin in process.plugins:
                if plugin.group == "builtin":
                    continue
                for hook in plugin.hooks:
                    if hook.calls or hook.errors:
                        yield process.process, plugin.identity, hook


def _acts_behind_front(plugin: Plugin) -> bool:
    return not plugin.is_builtin and (
        plugin.state in ("active", "other role")
        and not plugin.facts.roles.isdisjoint(("engine", "worker"))
    )
