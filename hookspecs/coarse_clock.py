"""``CoarseClock``: who takes how long in a loop whose calls are hardly longer than reading a clock.

A thread looks now and then whose code the loop runs, and adds up its time; it ends when nothing has
run for a while. Whoever takes longer than one period is seen, so the loop itself reads no clock
between its calls.
"""

from __future__ import annotations

import threading
import time
from time import perf_counter

from .plugin import Plugin

Cell = list[Plugin | None]

_QUIET = 20
"""So many periods without a look end the thread."""


class CoarseClock:
    """Args:
        budget_s: what is measured with it; it is exact to a twentieth of that, or to 50 ms.

    A loop writes its cell to ``cell[0]``, calls ``start`` if ``stopped[0]``, and then writes what
    ``perf_counter`` tells to ``began[0]``; in the end it looks at ``late[0]`` and writes to
    ``began[0]`` what stood there before: 0 where nothing runs. While code holds the interpreter's
    lock the thread sees nothing, and looks where that code next lets others run, which is before
    its function returns, if no other thread waits for the lock too.

    Attributes:
        late: whether a call has taken longer than the budget and a period since somebody asked.
    """

    __slots__ = ("_began", "_cell", "_lock", "_seconds", "began", "cell", "late", "limit_s",
                 "period_s", "stopped")  # fmt: skip

    def __init__(self, budget_s: float) -> None:
        self.period_s = min(budget_s / 20, 0.05)
        self.limit_s = budget_s + self.period_s
        self.cell: list[Cell | None] = [None]
        self.began = [0.0]
        self.late = [False]
        self.stopped = [True]
        self._lock = threading.Lock()
        self._cell: Cell = [None]
        self._began = 0.0
        self._seconds: dict[int, float] = {}

    def start(self) -> None:
        with self._lock:
            if not self.stopped[0]:
                return
            self.stopped[0] = False
            threading.Thread(target=self._run, name="hook clock", daemon=True).start()

    def seconds(self, plugin: Plugin) -> float:
        """How long it ran in the call that was late."""
        return self._seconds.get(id(plugin), 0.0)

    def look(self, then: float, now: float) -> bool:
        """Whether anything ran since the time ``then``. What runs now is taken to have run all the
        time since, or since its call began."""
        cell, self.cell[0] = self.cell[0], None
        if cell is not None:
            self._cell = cell
        began = self.began[0]
        if not began:
            return cell is not None
        if began != self._began:
            self._began, self._seconds = began, {}
        plugin = self._cell[0]
        if plugin is not None:
            key = id(plugin)
            self._seconds[key] = self._seconds.get(key, 0.0) + now - max(then, began)
        if now - began > self.limit_s:
            self.late[0] = True
        return True

    def _run(self) -> None:
        then = since = perf_counter()
        while True:
            time.sleep(self.period_s)
            now = perf_counter()
            if self.look(then, now):
                since = now
            elif now - since > _QUIET * self.period_s and self._end():
                return
            then = now

    def _end(self) -> bool:
        """Whether it has ended: somebody may begin just then."""
        with self._lock:
            self.stopped[0] = True
            if self.cell[0] is not None:
                self.stopped[0] = False
            return self.stopped[0]
