"""The loop of a ``notify`` hook, unrolled: one function for each set of implementations.

A guarded call must not cost much more than the call itself, because some hooks run at every step
of the engine. The source is generated once, when the set of implementations changes, as
``dataclasses`` does for its methods.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, Any

from .context import RUNNING
from .guard import Bound

if TYPE_CHECKING:
    from .coarse_clock import CoarseClock
    from .guard import Guard
    from .hook import Notify


def caught() -> tuple[type[BaseException], ...]:
    """What a guard catches of the exception that is being handled, for its ``except`` clause.

    Only a real interrupt, a real cancellation and the end of a coroutine or generator that waits
    in the guard pass: they are the program's. The same classes raised by the guarded code itself
    are its failure, as is a class right under ``BaseException``: panics of compiled libraries are
    such classes.
    """
    error = sys.exc_info()[1]
    if isinstance(error, KeyboardInterrupt):
        passes = _is_interrupt(error)
    elif isinstance(error, GeneratorExit):
        passes = _is_closed(error, sys._getframe(1).f_code)
    else:
        passes = _is_cancellation(error)
    return () if passes else (BaseException,)


def _is_closed(error: GeneratorExit, guard: CodeType) -> bool:
    """Whether the guard's own frame was closed: only one that waits can be, and then the exception
    comes from no code inside."""
    waits = guard.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)
    return bool(waits) and error.__traceback__ is not None and error.__traceback__.tb_next is None


def _is_interrupt(error: KeyboardInterrupt) -> bool:
    """Only Python's own handler raises it, and in the main thread; an event loop with a handler
    of its own and the engine, which ignores the signal, are never interrupted. A subclass is
    raised by the handler that the program installed."""
    if type(error) is not KeyboardInterrupt:
        return True
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _is_cancellation(error: BaseException | None) -> bool:
    """Whether somebody cancelled the task that runs here."""
    asyncio = sys.modules.get("asyncio")  # whoever cancels has imported it
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return False
    return task is not None and task.cancelling() > 0


SAMPLE_MASK = 63
"""One call in 64 is timed by real clocks; at each a coarse clock sees who exceeds the budget."""

_HEAD = """\
def {name}({names}):
"""
_COUNT = """\
    global count
    count += 1
"""
_TIMED_NOW_AND_THEN = """\
    if not count & {mask}:
        timed({names})
        return
"""
_ENTER = """\
    cell, token = running(), None
    if cell is None:
        cell = [None]
        token = enter(cell)
    outer = cell[0]
"""
_BEGIN_COARSE = """\
    coarse_cell[0] = cell
    if stopped[0]:
        start()
    before = call[0]
    try:
        call[0] = count
"""
_BEGIN_TIMED = """\
    try:
        then0 = clock()
"""
_EACH = """\
        cell[0] = plugin{n}{mark}
        try:
            result = call{n}({wanted})
            if result is not None:
                check(result)
        except caught() as error:
            failed(guard{n}, error)
"""
_READ_CLOCK = """\
        then{next} = clock()
"""
_SAMPLE = """\
        guard{n}.sampled += 1
        guard{n}.sampled_s += then{next} - then{n}
"""
_END_COARSE = """\
    finally:
        cell[0] = outer{after}
        call[0] = before
        if token is not None:
            leave(token)
        if late[0]:
            find_late()
"""
_END_TIMED = """\
        if then{last} - then0 > budget:
            find_slow([{times}])
    finally:
        cell[0] = outer{after}
        if token is not None:
            leave(token)
"""
_UNMARK = "; slot[0] = 0 if outer is None else outer.number"


class NotifyLoop:
    """One set of implementations. ``tell`` takes the hook's arguments, calls every guard,
    attributes what runs to its owner, hands results that are not ``None`` to
    ``hook.refuse_awaitable``, failures to ``hook.failed`` and a guard over its budget to
    ``hook.slow``.

    Args:
        coarse: for a loop that calls the hook at each step; without it every call is timed.
    """

    def __init__(
        self, hook: Notify, guards: Sequence[Guard], coarse: CoarseClock | None = None
    ) -> None:
        self._hook, self._guards, self._coarse = hook, tuple(guards), coarse
        self._first = 0 if coarse is None else coarse.first_number()
        self._slot = next((guard.plugin.slot for guard in guards), None)
        self._space: dict[str, Any] = {
            "count": 0,
            "slot": self._slot,
            "running": RUNNING.get,
            "enter": RUNNING.set,
            "leave": RUNNING.reset,
            "caught": caught,
            "check": hook.refuse_awaitable,
            "failed": hook.failed,
            "clock": perf_counter,
            "budget": hook.budget_s,
            "find_slow": self._find_slow,
        }
        if coarse is not None:
            self._space |= {
                "coarse_cell": coarse.cell,
                "call": coarse.call,
                "count": self._first,
                "stopped": coarse.stopped,
                "start": coarse.start,
                "late": coarse.late,
                "find_late": self._find_late,
            }
        exec(compile(self._source(), f"<hook {hook.info.name}>", "exec"), self._space)
        self.tell: Callable[..., None] = self._space["tell"]

    @property
    def count(self) -> int:
        """How often all were told."""
        count: int = self._space["count"]
        return count - self._first

    def end(self) -> None:
        """Hand the count over to the guards; another loop takes the place of this one."""
        for guard in self._guards:
            guard.calls += self.count

    def _source(self) -> str:
        names = ", ".join(self._hook.info.arguments)
        if not self._guards:
            return f"def tell({names}):\n    pass\n"
        numbers = range(len(self._guards) + 1)
        parts = {
            "names": names,
            "mask": SAMPLE_MASK,
            "last": numbers[-1],
            "times": ", ".join(f"then{n}" for n in numbers),
            "after": "" if self._slot is None else _UNMARK,
        }
        samples = "".join(_SAMPLE.format(n=n, next=n + 1) for n in numbers[:-1])
        timed = _ENTER + _BEGIN_TIMED + self._calls(names, _READ_CLOCK) + samples + _END_TIMED
        if self._coarse is None:
            return (_HEAD + _COUNT + timed).format(name="tell", **parts)
        plain = _ENTER + _BEGIN_COARSE + self._calls(names, "") + _END_COARSE
        plain = _HEAD + _COUNT + _TIMED_NOW_AND_THEN + plain
        return plain.format(name="tell", **parts) + (_HEAD + timed).format(name="timed", **parts)

    def _calls(self, names: str, after_each: str) -> str:
        """The lines that call each guard. One that wants other arguments gets them at once."""
        lines = ""
        for n, guard in enumerate(self._guards):
            function, wanted, plugin = guard.call, names, guard.plugin
            if isinstance(function, Bound):
                wanted = ", ".join(f"ctx{n}" if name == "ctx" else name for name in function.wanted)
                self._space[f"ctx{n}"] = function.context
                function = function.function
            self._space |= {f"plugin{n}": plugin, f"call{n}": function, f"guard{n}": guard}
            mark = "" if self._slot is None else f"; slot[0] = {plugin.number}"
            lines += (_EACH + after_each).format(n=n, next=n + 1, wanted=wanted, mark=mark)
        return lines

    def _find_slow(self, times: Sequence[float]) -> None:
        """Give up whoever took longer than the budget."""
        budget_s = self._hook.budget_s
        for guard, then, now in zip(self._guards, times, times[1:], strict=False):
            if now - then > budget_s:
                self._hook.slow(guard, now - then)

    def _find_late(self) -> None:
        """The same, where the coarse clock has seen it."""
        assert self._coarse is not None
        self._coarse.late[0] = False
        for guard in self._guards:
            seconds = self._coarse.seconds(guard.plugin)
            if seconds > self._coarse.limit_s:
                self._hook.slow(guard, seconds)
