"""Ranks that wait for each other in vain: how each worker says what it waits in, and when the
engine concludes that nobody can end it.

An exchange here is a call of ``torch.distributed`` among all ranks that holds the thread which
makes it, as on a CPU. On a GPU such a call returns at once, and in a group of a plugin's own others
than the ranks may be: neither is seen. It ends when all ranks have entered it. One that a rank
leaves out, or enters in another order, would hold the others for ever. That a rank waits long says
nothing: another may load, compile, or be stopped. So each worker has a thread that looks at the
main one, and only where every rank is known to wait is the call given up.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

from hookserve.hookspecs.crash_mark import CrashMark

LOOK_EVERY_S = 1.0
"""How often a worker looks, and the engine at what it found."""
IN_VAIN_S = 30.0
"""So long every rank must have waited."""
_TIMES = struct.Struct("dd")


class Wait(NamedTuple):
    """What a rank waits in, and for how many seconds."""

    where: str
    """The exchange and who called it; empty: it waits for the engine's next call."""
    age_s: float


def report_waits(mark: CrashMark) -> None:
    """Let a thread note in ``mark`` what this process' main thread waits in, as long as it lives.
    A thread that waits uses no processor time: it is the same wait as long as that stands still."""
    main = threading.main_thread().ident
    assert main is not None
    clock = time.pthread_getcpuclockid(main)

    def look() -> None:
        used, since = -1.0, 0.0
        while True:
            now, before = time.monotonic(), used
            used = time.clock_gettime(clock)
            if used != before:
                since = now
            where = find_wait(sys._current_frames()[main]) if used == before else None
            noted = b"" if where is None else _TIMES.pack(now, since) + where.encode()
            mark.note(noted)
            time.sleep(LOOK_EVERY_S)

    threading.Thread(target=look, name="waits", daemon=True).start()


def find_wait(frame: FrameType | None) -> str | None:
    """The exchange that is the innermost call, such as ``"all_reduce (called at FILE:LINE)"``;
    empty: it is the next call of the engine that is waited for; ``None``: neither."""
    assert frame is not None
    if _module(frame) == "hookserve.engine.channel":
        return ""
    exchange = None
    while frame is not None and _module(frame).startswith("torch.distributed"):
        if frame.f_code.co_name != "wrapper":
            exchange = frame
        frame = frame.f_back
    while frame is not None and _module(frame).startswith("hookserve.ops."):
        frame = frame.f_back  # whoever calls a layer or the group
    if exchange is None or frame is None or not _is_among_all(exchange):
        return None
    where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return f"{exchange.f_code.co_name} (called at {where})"


def _is_among_all(exchange: FrameType) -> bool:
    """Whether the function was given the default group."""
    nothing = object()
    group = exchange.f_locals.get("group", nothing)
    default = getattr(exchange.f_globals.get("GroupMember"), "WORLD", None)
    return group is None or group is default


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def read_wait(mark: CrashMark) -> Wait | None:
    """What a rank waits in by now; ``None``: it does not wait, or is not known to: one that is
    stopped does not look."""
    noted = mark.noted()
    if len(noted) < _TIMES.size:
        return None
    looked, since = _TIMES.unpack_from(noted)
    if time.monotonic() - looked > 3 * LOOK_EVERY_S:
        return None
    return Wait(noted[_TIMES.size :].decode(errors="replace"), looked - since)


def describe_deadlock(call: str, waits: Mapping[int, Wait | None]) -> str | None:
    """One sentence if every rank has waited for long, and one of them in an exchange.

    Args:
        call: what the ranks were asked to do.
    """
    told, ages = [], []
    for rank, wait in waits.items():
        if wait is None or wait.age_s < IN_VAIN_S:
            return None
        ages.append(wait.age_s)
        told.append(f"worker {rank} in {wait.where}" if wait.where else f"worker {rank} is through")
    if not any(wait is not None and wait.where for wait in waits.values()):
        return None
    return (
        f"{call}: the workers have waited for each other for {min(ages):.0f} s, and none can go "
        f"on: {', '.join(told)}; every rank must enter the same exchanges in the same order"
    )
