"""``PluginThreads``: as a ``PluginThread``, for calls that must not wait for one another.

A request that a plugin keeps waiting must not keep the others waiting that the plugin is asked
about.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .plugin_thread import Outcome, PluginThread

MAX_THREADS = 8


class PluginThreads:
    """Up to ``MAX_THREADS``, each made when all others are busy; then calls wait their turn. To be
    used from one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[PluginThread] = []

    def call(self, function: Callable[[], Any]) -> Future[Outcome]:
        """Run the function in one of them; a call that is cancelled before its turn does not run.

        Raises:
            TimeoutError: at once, while calls run in all of them that nobody waits for any more.
        """
        return self._choose().call(function)

    def end(self) -> None:
        """Let the threads go when they have done what was called so far."""
        for thread in self._threads:
            thread.end()

    def _choose(self) -> PluginThread:
        usable = [thread for thread in self._threads if not thread.is_stuck]
        if len(self._threads) < MAX_THREADS and not any(t.num_calls == 0 for t in usable):
            added = PluginThread(f"{self._name} {len(self._threads)}")
            self._threads.append(added)
            return added
        return min(usable or self._threads, key=lambda thread: thread.num_calls)

    def leave(self, call: Future[Outcome], budget_s: float) -> bool:
        """Stop waiting for a call; whether what runs in its thread takes too long."""
        return any(thread.leave(call, budget_s) for thread in self._threads if thread.has(call))
