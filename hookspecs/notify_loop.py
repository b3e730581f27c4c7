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
    from .calls import Guard, Notify


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


SAMPLE_MASK = 15
"""One call in 16 is timed; each is measured, since none may exceed the budget unnoticed."""

_BEGIN = """\
    global count
    count += 1
"""
_HERE = """\
    if running() is not home:
        elsewhere({arguments})
        return
    before = slot[0]
    try:
        then0 = clock()
"""
_EACH = """\
        slot[0] = {number}
        try:
            result = call{n}({wanted})
            if result is not None:
                check(result)
        except caught() as error:
            failed(guard{n}, error)
        then{next} = clock()
"""
_END = """\
        if then{n} - then0 > budget or not count & {mask}:
            timed(count, ({times}))
    finally:
        slot[0] = before
"""
_ELSEWHERE = """\
    elsewhere({arguments})
"""


class NotifyLoop:
    """One set of implementations. ``tell`` takes the hook's arguments, calls every guard,
    attributes what runs to its owner, hands results that are not ``None`` to
    ``hook.refuse_awaitable``, failures to ``hook.failed`` and a guard over its budget to
    ``hook.slow``. Outside of the hook's home it leaves all that to ``hook.tell_elsewhere``."""

    def __init__(self, hook: Notify, guards: Sequence[Guard]) -> None:
        self._hook, self._guards = hook, tuple(guards)
        self._space: dict[str, Any] = {
            "count": 0,
            "running": RUNNING.get,
            "home": hook.home,
            "slot": None if hook.home is None else hook.home.slot,
            "clock": perf_counter,
            "budget": hook.budget_s,
            "caught": caught,
            "check": hook.refuse_awaitable,
            "failed": hook.failed,
            "elsewhere": hook.tell_elsewhere,
            "timed": self._timed,
        }
        exec(compile(self._source(), f"<hook {hook.info.name}>", "exec"), self._space)
        self.tell: Callable[..., None] = self._space["tell"]

    @property
    def count(self) -> int:
        """How often all were told."""
        count: int = self._space["count"]
        return count

    def end(self) -> None:
        """Hand over the count to the guards; another loop takes the place of this one."""
        for guard in self._guards:
            guard.calls += self.count

    def _source(self) -> str:
        names = ", ".join(self._hook.info.arguments)
        if not self._guards:
            return f"def tell({names}):\n    pass\n"
        head = f"def tell({names}):\n{_BEGIN}"
        if self._hook.home is None:
            return head + _ELSEWHERE.format(arguments=names)
        calls = "".join(self._call(n, guard, names) for n, guard in enumerate(self._guards))
        last = len(self._guards)
        times = ", ".join(f"then{n}" for n in range(last + 1))
        end = _END.format(n=last, mask=SAMPLE_MASK, times=times)
        return head + _HERE.format(arguments=names) + calls + end

    def _call(self, n: int, guard: Guard, names: str) -> str:
        """The lines of one guard. One that wants other arguments gets them at once."""
        function, wanted = guard.call, names
        if isinstance(function, Bound):
            wanted = ", ".join(f"ctx{n}" if name == "ctx" else name for name in function.wanted)
            self._space[f"ctx{n}"] = function.context
            function = function.function
        self._space.update({f"call{n}": function, f"guard{n}": guard})
        return _EACH.format(n=n, next=n + 1, number=guard.plugin.number, wanted=wanted)

    def _timed(self, count: int, times: Sequence[float]) -> None:
        for guard, then, now in zip(self._guards, times, times[1:], strict=False):
            if not count & SAMPLE_MASK:
                guard.sample(now - then)
            if now - then > self._hook.budget_s:
                self._hook.slow(guard, now - then)
