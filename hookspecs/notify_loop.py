"""The loop of a ``notify`` hook, unrolled: one function for each set of implementations.

A guarded call must not cost much more than the call itself, because later hooks run at every step
of the engine. A plain loop over guards costs about a fifth more than this; the source is
generated once, when the set of implementations changes, as ``dataclasses`` does for its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .context import RUNNING

if TYPE_CHECKING:
    from .calls import Guard, Notify

CAUGHT = (Exception, SystemExit)
"""What a guard catches; ``KeyboardInterrupt`` and cancellation pass."""

SAMPLE_MASK = 15
"""One call in 16 is timed."""

_HEAD = """\
def tell({arguments}):
    hook.count = count = hook.count + 1
    if not count & {mask}:
        return timed({arguments})
    pending = None
    cell = [None]
    token = enter(cell)
    try:
"""
_EACH = """\
        cell[0] = plugin{n}
        try:
            result = call{n}({arguments})
            if result is not None:
                pending = keep(guard{n}, result, pending)
        except CAUGHT as error:
            failed(guard{n}, error)
"""
_TAIL = """\
    finally:
        leave(token)
    return pending
"""


def compile_loop(
    hook: Notify, guards: Sequence[Guard], arguments: Sequence[str]
) -> Callable[..., Any]:
    """A function of the hook's arguments that calls every guard, attributes what runs to its
    owner, and hands failures to ``hook.failed``. Returns what ``hook.keep`` made of results that
    are not ``None``, or ``None``."""
    names = ", ".join(arguments)
    source = _HEAD.format(arguments=names, mask=SAMPLE_MASK)
    space: dict[str, Any] = {
        "hook": hook,
        "timed": hook.timed,
        "keep": hook.keep,
        "failed": hook.failed,
        "enter": RUNNING.set,
        "leave": RUNNING.reset,
        "CAUGHT": CAUGHT,
    }
    for n, guard in enumerate(guards):
        source += _EACH.format(n=n, arguments=names)
        space.update({f"plugin{n}": guard.plugin, f"call{n}": guard.call, f"guard{n}": guard})
    if not guards:
        source += "        pass\n"
    exec(compile(source + _TAIL, f"<hook {hook.info.name}>", "exec"), space)
    tell: Callable[..., Any] = space["tell"]
    return tell
