"""``PluginThread``: where a plugin's plain functions run that must hold up nobody else.

A function cannot be interrupted, but one can stop waiting for it. What follows is the caller's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from .errors import PluginError


class Outcome(NamedTuple):
    """What a call returned or raised. A value: some exceptions cannot pass through futures."""

    result: Any
    error: BaseException | None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def build_within(budget_s: float, owner: str, what: str, build: Callable[[], Any]) -> Any:
    """What ``build`` returns; it runs in a thread of its own and may be left alone there.

    Args:
        owner: the plugin's identity, for the error.
        what: is built, for the error.

    Raises:
        PluginError: it took more than ``budget_s`` seconds.
        whatever ``build`` raises.
    """
    thread = PluginThread(what)
    under_way = thread.call(build)
    thread.end()
    try:
        outcome = under_way.result(budget_s)
    except TimeoutError:
        raise PluginError(owner, "run", f"{what} was not built within {budget_s:g} s") from None
    return outcome.unwrap()


_Calls = SimpleQueue[tuple[Future[Outcome], Callable[[], Any]] | None]
"""What is to be called, and where the result goes; ``None`` ends the thread."""


class PluginThread:
    """One thread, made at the first call; calls run one after the other. It does not keep the
    process alive: a function that hangs ends with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: _Calls = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._undone: list[Future[Outcome]] = []
        self._running: tuple[Future[Outcome], float] | None = None
        """The call that runs, and when it began."""
        self._left: Future[Outcome] | None = None
        self._left_at = 0.0

    def call(self, function: Callable[[], Any]) -> Future[Outcome]:
        """Run the function there; a call that is cancelled before its turn does not run.

        Raises:
            TimeoutError: at once, while a call runs that nobody waits for any more.
        """
        if self.is_stuck:
            raise self._still_runs()
        future: Future[Outcome] = Future()
        self._undone = [each for each in self._undone if not each.done()]
        self._undone.append(future)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._calls,), name=self._name, daemon=True
                )
                self._thread.start()
            self._calls.put((future, function))
        return future

    def end(self) -> None:
        """Let the thread go when it has done what was called so far. A later call makes another."""
        with self._lock:
            if self._thread is not None:
                self._calls.put(None)
                self._calls, self._thread = SimpleQueue(), None

    @property
    def is_stuck(self) -> bool:
        """Whether a call runs that nobody waits for any more."""
        return self._left is not None and not self._left.done()

    @property
    def num_calls(self) -> int:
        """Those that wait, and the one that runs."""
        return sum(not each.done() for each in self._undone)

    def has(self, call: Future[Outcome]) -> bool:
        """Whether the call waits or runs here."""
        return call in self._undone

    def leave(self, call: Future[Outcome], budget_s: float) -> bool:
        """Stop waiting for a call; whether what runs here takes too long, rather than that it had
        to wait for its turn. Then those that wait fail at once."""
        if call.done() or self._running is None:
            call.cancel()
            return False
        running, began_at = self._running
        ran_s = time.monotonic() - began_at
        is_own = not call.cancel() and running is call
        if ran_s < (budget_s / 2 if is_own else budget_s):
            return False
        self._left, self._left_at = running, time.monotonic()
        while True:
            try:
                waiting = self._calls.get_nowait()
            except Empty:
                return True
            if waiting is not None and waiting[0].set_running_or_notify_cancel():
                waiting[0].set_result(Outcome(None, self._still_runs()))

    def _still_runs(self) -> TimeoutError:
        since_s = time.monotonic() - self._left_at
        return TimeoutError(f"a call of it that was given up {since_s:.1f} s ago still runs")

    def _run(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            self._run_one(*call)

    def _run_one(self, future: Future[Outcome], function: Callable[[], Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._running = future, time.monotonic()
        try:
            outcome = Outcome(function(), None)
        except BaseException as error:  # handed on, whatever it is
            outcome = Outcome(None, error)
        self._running = None
        future.set_result(outcome)
