"""The loop of a ``notify`` hook, unrolled: one function for each set of implementations.

A guarded call must not cost much more than the call itself, because later hooks run at every step
of the engine. A plain loop over guards costs about a fifth more than this; the source is
generated once, when the set of implementations changes, as ``dataclasses`` does for its methods.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .context import RUNNING

if TYPE_CHECKING:
    from .calls import Guard, Notify


def caught() -> tuple[type[BaseException], ...]:
    """What a guard catches of the exception that is being handled, for its ``except`` clause.

    Only a real interrupt, a real cancellation and the end of a generator pass: they are the
    program's. The same classes raised by the guarded code itself are its failure, as is a class
    right under ``BaseException``: panics of compiled libraries are such classes.
    """
    error = sys.exc_info()[1]
    if isinstance(error, KeyboardInterrupt):
        passes = _is_interrupt(error)
    else:
        passes = isinstance(error, GeneratorExit) or _is_cancellation(error)
    return () if passes else (BaseException,)


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
"""One call in 16 is timed."""

_COUNT = """\
    hook.count = count = hook.count + 1
    if not count & {mask}:
        timed({arguments})
        return
"""
_BEGIN = """\
    cell = [None]
    token = enter(cell)
    try:
"""
_EACH = """\
        cell[0] = plugin{n}
        try:
            result = call{n}({arguments})
            if result is not None:
                check(result)
        except caught() as error:
            failed(guard{n}, error)
"""
_CLOCK = """\
        now = clock()
        elapsed = now - then
        then = now
        guard{n}.sampled += 1
        guard{n}.sampled_s += elapsed
        if elapsed > budget:
            slow(guard{n}, elapsed)
"""
_END = """\
    finally:
        leave(token)
"""


def compile_loop(
    hook: Notify, guards: Sequence[Guard], arguments: Sequence[str], budget_s: float
) -> Callable[..., Any]:
    """A function of the hook's arguments that calls every guard, attributes what runs to its
    owner, hands results that are not ``None`` to ``hook.check`` and failures to ``hook.failed``.
    One call in 16 is timed; a guard whose timed call took longer
    than the budget is handed to ``hook.slow``."""
    names = ", ".join(arguments)
    plain, timed = "", "        then = clock()\n"
    space: dict[str, Any] = {
        "hook": hook,
        "check": hook.check,
        "failed": hook.failed,
        "slow": hook.slow,
        "budget": budget_s,
        "clock": perf_counter,
        "enter": RUNNING.set,
        "leave": RUNNING.reset,
        "caught": caught,
    }
    for n, guard in enumerate(guards):
        each = _EACH.format(n=n, arguments=names)
        plain += each
        timed += each + _CLOCK.format(n=n)
        space.update({f"plugin{n}": guard.plugin, f"call{n}": guard.call, f"guard{n}": guard})
    count = _COUNT.format(arguments=names, mask=SAMPLE_MASK)
    source = (
        f"def timed({names}):\n{_BEGIN}{timed}{_END}\n"
        f"def tell({names}):\n{count}{_BEGIN}{plain or '        pass'}\n{_END}"
    )
    exec(compile(source, f"<hook {hook.info.name}>", "exec"), space)
    tell: Callable[..., Any] = space["tell"]
    return tell
