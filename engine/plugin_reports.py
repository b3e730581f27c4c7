"""``EngineReports``: what the plugins of an engine's processes are doing, for the process that
started it: on its event loop, or from any other thread.

What a report holds is ``hookspecs.report``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

from hookserve.hookspecs import HostError, PluginManager
from hookserve.hookspecs.report import ProcessReport

from .engine_client import EngineClient
from .errors import EngineDeadError, cut

ASK_TIMEOUT_S = 2.0
LOOP_TIMEOUT_S = 2 * ASK_TIMEOUT_S
"""So long another thread waits for the event loop."""


class EngineReports:
    """Asks one engine."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def told_by(self, pm: PluginManager) -> Iterator[None]:
        """As long as this lasts ``pm.describe(all_processes=True)`` tells of the engine too. To be
        entered on the event loop of the engine's client."""
        self._loop = asyncio.get_running_loop()
        pm.others.append(self._ask_and_wait)
        try:
            yield
        finally:
            pm.others.remove(self._ask_and_wait)

    async def ask(self, timeout_s: float = ASK_TIMEOUT_S) -> list[ProcessReport]:
        """The engine's process and its workers'; of an engine that does not answer the reason."""
        try:
            reports = await self._client.describe(timeout_s)
        except TimeoutError:
            return [_silent(f"no answer within {timeout_s:g} s")]
        except (EngineDeadError, RuntimeError) as error:
            return [_silent(cut(str(error)))]
        # An engine in a thread of this process has the same plugins, which are told of already.
        return [report for report in reports if report.pid != os.getpid()]

    def _ask_and_wait(self) -> list[ProcessReport]:
        """
        Raises:
            HostError: on the event loop's thread, which would wait for itself.
        """
        loop = self._loop
        assert loop is not None, "told_by keeps it"
        if loop.is_closed():
            return [_silent("the event loop of the engine has ended")]
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                raise HostError(
                    "describe(all_processes=True) waits for the engine, whose answer comes by the "
                    "event loop that runs here; await asyncio.to_thread(describe, True) instead"
                )
        asking = asyncio.run_coroutine_threadsafe(self.ask(), loop)
        try:
            return asking.result(LOOP_TIMEOUT_S)
        except TimeoutError:  # between two ``run_until_complete``, perhaps
            asking.cancel()
            return [_silent("the event loop of the engine does not run")]


def _silent(problem: str) -> ProcessReport:
    return ProcessReport(process="engine", problem=problem)
