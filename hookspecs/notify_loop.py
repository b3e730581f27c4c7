"""The loop of a ``notify`` hook, unrolled: one function for each set of implementations.

A guarded call must not cost much more than the call itself, because later hooks run at every step
of the engine. A plain loop over guards costs about a fifth more than this; the source is
generated once, when the set of implementations changes, as ``dataclasses`` does for its methods.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .context import RUNNING

if TYPE_CHECKING:
    from .calls import Guard, Notify


def caught() -> tuple[type[BaseException], ...]:
    """What a guard catches of the exception that is being handled, for its ``except`` clause.

    Only ``KeyboardInterrupt``, cancellation and the end of a generator pass: they are the
    program's. A class right under ``BaseException`` is caught, because panics of compiled
    libraries are such classes.
    """
    error = sys.exc_info()[1]
    asyncio = sys.modules.get("asyncio")  # whoever cancels has imported it
    cancelled = (asyncio.CancelledError,) if asyncio else ()
    passes = isinstance(error, (KeyboardInterrupt, GeneratorExit, *cancelled))
    return () if passes else (BaseException,)


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
