"""``PluginThread``: where a plugin's plain functions run that must hold up nobody else.

A function cannot be interrupted, but one can stop waiting for it. What follows is the caller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a call returned or raised. A value: some exceptions cannot pass through futures."""

    result: Any
    error: BaseException | None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class PluginThread:
    """One thread, made at the first call; calls run one after the other. It does not keep the
    process alive: a function that hangs ends with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Outcome], Callable[[], Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Future[Outcome]:
        """Run the function there; a call that is cancelled before its turn does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[Outcome] = Future()
        self._calls.put((future, function))
        return future

    def _run(self) -> None:
        while True:
            self._run_one(*self._calls.get())

    def _run_one(self, future: Future[Outcome], function: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            outcome = Outcome(function(), None)
        except BaseException as error:  # handed on, whatever it is
            outcome = Outcome(None, error)
        future.set_result(outcome)
