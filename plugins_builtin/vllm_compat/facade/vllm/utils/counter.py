"""Numbers that go up by one."""

from __future__ import annotations

import threading

__all__ = ["AtomicCounter", "Counter"]

__surface__ = dict.fromkeys(__all__, "live: plugins build it")


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        found = self.counter
        self.counter += 1
        return found

    def reset(self) -> None:
        self.counter = 0


class AtomicCounter:
    """For several threads."""

    def __init__(self, initial: int = 0) -> None:
        self._value = initial
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        return self._value

    def inc(self, num: int = 1) -> int:
        with self._lock:
            self._value += num
            return self._value

    def dec(self, num: int = 1) -> int:
        return self.inc(-num)
