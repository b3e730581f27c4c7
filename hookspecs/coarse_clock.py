"""``CoarseClock``: the time at the price of reading a list, for loops that read it between calls
that are hardly longer than reading a real clock.

A thread writes it down, and ends when nobody has looked for a while.
"""

from __future__ import annotations

import threading
import time
from time import perf_counter

_QUIET = 20
"""So many periods without a look end the thread."""


class CoarseClock:
    """Args:
        budget_s: what is measured with it; it is exact to a twentieth of that, or to 50 ms.

    A loop writes ``looked[0] = busy[0] = True``, calls ``start`` if ``stopped[0]``, and only then
    reads ``now[0]``, as ``perf_counter`` tells it; in the end it writes ``busy[0] = False``. While
    code holds the interpreter's lock the time stands still, and goes on where that code next lets
    others run, which is before its function returns, if no other thread waits for the lock too.
    """

    __slots__ = ("_lock", "busy", "looked", "now", "period_s", "stopped")

    def __init__(self, budget_s: float) -> None:
        self.period_s = min(budget_s / 20, 0.05)
        self.now = [0.0]
        self.looked = [False]
        self.busy = [False]
        self.stopped = [True]
        self._lock = threading.Lock()

    def start(self) -> None:
        with self._lock:
            if not self.stopped[0]:
                return
            self.now[0] = perf_counter()
            self.stopped[0] = False
            threading.Thread(target=self._run, name="hook clock", daemon=True).start()

    def _run(self) -> None:
        since = perf_counter()
        while True:
            time.sleep(self.period_s)
            self.now[0] = now = perf_counter()
            if self.looked[0] or self.busy[0]:
                self.looked[0], since = False, now
            elif now - since > _QUIET * self.period_s and self._end():
                return

    def _end(self) -> bool:
        """Whether it has ended: somebody may look just then."""
        with self._lock:
            self.stopped[0] = True
            if self.looked[0]:
                self.stopped[0] = False
            return self.stopped[0]
