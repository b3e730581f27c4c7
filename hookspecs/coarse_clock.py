"""``CoarseClock``: who takes how long in a loop whose calls are hardly longer than reading a clock.

A thread looks now and then whose code the loop runs, and adds up its time; it ends when nothing has
run for a while. Whoever takes longer than one period is seen, so the loop itself reads no clock
between its calls.
"""

from __future__ import annotations

import threading
import time
from time import perf_counter, process_time

from .plugin import Plugin

Cell = list[Plugin | None]

_BITS_OF_CALLS = 24
_QUIET = 20
"""So many periods without a look end the thread."""


class CoarseClock:
    """Args:
        budget_s: what is measured with it; it is exact to a twentieth of that, or to 50 ms.

    A loop writes its cell to ``cell[0]``, calls ``start`` if ``stopped[0]``, and then writes a
    number to ``call[0]`` that no other of its calls, and no other loop's, has; in the end it writes
    there what stood there before, 0 where nothing runs, and looks at ``late[0]``. While code holds
    the interpreter's lock the thread sees nothing, and looks where that code next lets others run,
    which is before its function returns, if no other thread waits for the lock too.

    Attributes:
        late: whether somebody has taken longer than the budget and a period since it was asked.
    """

    __slots__ = ("_call", "_cell", "_lock", "_num_loops", "_seconds", "call", "cell", "late",
                 "limit_s", "period_s", "stopped")  # fmt: skip

    def __init__(self, budget_s: float) -> None:
        self.period_s = min(budget_s / 20, 0.05)
        self.limit_s = budget_s + self.period_s
        self.cell: list[Cell | None] = [None]
        self.call = [0]
        self.late = [False]
        self.stopped = [True]
        self._lock = threading.Lock()
        self._num_loops = 0
        self._cell: Cell = [None]
        self._call = 0
        self._seconds: dict[int, float] = {}

    def first_number(self) -> int:
        """From which a loop numbers its calls."""
        self._num_loops += 1
        return self._num_loops << _BITS_OF_CALLS

    def start(self) -> None:
        with self._lock:
            if not self.stopped[0]:
                return
            self.stopped[0] = False
            threading.Thread(target=self._run, name="hook clock", daemon=True).start()

    def seconds(self, plugin: Plugin) -> float:
        """How long it ran in the call that was late."""
        return self._seconds.get(id(plugin), 0.0)

    def look(self, elapsed_s: float, computed_s: float) -> bool:
        """Whether anything has run since the last look.

        Args:
            elapsed_s: since then. What runs now has run all that time, if its call was seen before.
            computed_s: the processor time of this process meanwhile. A call that was not seen
                before cannot have taken more: where the process was stopped, nobody has.
        """
        cell, self.cell[0] = self.cell[0], None
        if cell is not None:
            self._cell = cell
        call = self.call[0]
        if not call:
            return cell is not None
        if call != self._call:
            self._call, self._seconds = call, {}
            elapsed_s = min(elapsed_s, computed_s)
        plugin = self._cell[0]
        if plugin is not None:
            seconds = self._seconds.get(id(plugin), 0.0) + elapsed_s
            self._seconds[id(plugin)] = seconds
            if seconds > self.limit_s:
                self.late[0] = True
        return True

    def _run(self) -> None:
        then, computed = perf_counter(), process_time()
        since = then
        while True:
            time.sleep(self.period_s)
            now, computed_now = perf_counter(), process_time()
            if self.look(now - then, computed_now - computed):
                since = now
            elif now - since > _QUIET * self.period_s and self._end():
                return
            then, computed = now, computed_now

    def _end(self) -> bool:
        """Whether it has ended: somebody may begin just then."""
        with self._lock:
            self.stopped[0] = True
            if self.cell[0] is not None:
                self.stopped[0] = False
            return self.stopped[0]
