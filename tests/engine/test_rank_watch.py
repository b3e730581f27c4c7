"""What ranks wait in, and when all of them wait in vain; with real ranks in
tests/e2e/test_tensor_parallel.py."""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from types import FrameType

import pytest

from hookserve.engine import rank_watch
from hookserve.engine.rank_watch import Wait, describe_deadlock, find_wait, read_wait
from hookserve.hookspecs.crash_mark import CrashMark

LONG = rank_watch.IN_VAIN_S + 1
ADDS, THROUGH, BUSY = Wait("all_reduce (called at a.py:1)", LONG), Wait("", LONG), None


@pytest.fixture
def mark() -> Iterator[CrashMark]:
    made = CrashMark.create()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("waits", "is_in_vain"),
    [
        ([ADDS, THROUGH], True),
        ([ADDS, Wait("send (called at b.py:2)", LONG)], True),
        ([ADDS, BUSY], False),
        ([ADDS, Wait("", rank_watch.IN_VAIN_S - 1)], False),
        ([Wait("recv (called at a.py:1)", rank_watch.IN_VAIN_S - 1), THROUGH], False),
        ([THROUGH, THROUGH], False),
    ],
)
def test_it_is_in_vain_only_where_every_rank_waits_and_has_for_long(
    waits: list[Wait | None], is_in_vain: bool
) -> None:
    told = describe_deadlock("step", dict(enumerate(waits)))
    assert (told is not None) is is_in_vain
    if told is not None:
        assert told.startswith(f"step: the workers have waited for each other for {LONG:.0f} s")
        assert "worker 0 in all_reduce (called at a.py:1)" in told


SOURCE = """
import sys
from types import SimpleNamespace

GroupMember = SimpleNamespace(WORLD="all")

def call(group, inner=None, *rest):
    return inner(group, *rest) if inner else sys._getframe()
"""
DISTRIBUTED = "torch.distributed.distributed_c10d"


def frame_in(*modules: str, group: str | None = "all") -> FrameType:
    """The innermost of calls one inside the other, each in a function ``call`` of a module."""
    made = []
    for name in modules:
        module = types.ModuleType(name)
        exec(compile(SOURCE, f"{name}.py", "exec"), module.__dict__)
        made.append(module.call)
    found: FrameType = made[0](group, *made[1:])
    return found


@pytest.mark.parametrize("group", [None, "all"])
def test_an_exchange_is_told_by_its_name_and_by_who_called_a_layer(group: str | None) -> None:
    inner = "torch.distributed.c10d_logger", DISTRIBUTED
    told = find_wait(frame_in("plug", "hookserve.ops.context", *inner, group=group))
    assert told == "call (called at plug.py:8)"


def test_other_waits_are_told_apart() -> None:
    assert find_wait(frame_in("plug", "hookserve.engine.channel")) == ""
    assert find_wait(frame_in("torch.distributed.x", "plug")) is None, "the innermost call counts"
    assert find_wait(frame_in("plug")) is None
    assert find_wait(frame_in("plug", DISTRIBUTED, group="with a trainer")) is None


def test_one_that_has_stopped_looking_is_not_taken_to_wait(
    mark: CrashMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_wait(mark) is None
    now = time.monotonic()
    mark.note(rank_watch._TIMES.pack(now, now - 7.0) + b"send")
    assert read_wait(mark) == Wait("send", pytest.approx(7.0))
    monkeypatch.setattr(rank_watch, "LOOK_EVERY_S", 1e-6)
    assert read_wait(mark) is None
