"""What a worker process makes of the errors in it."""

from __future__ import annotations

from hookserve.engine.worker_process import lost_a_peer
from hookserve.ops.errors import PeerLostError


def test_another_ranks_end_is_found_behind_an_error_whoever_has_wrapped_it() -> None:
    inner = RuntimeError("the model failed")
    inner.__cause__ = PeerLostError("nobody answers")
    outer = RuntimeError("the step failed")
    outer.__cause__ = inner
    assert lost_a_peer(outer)
    circular = RuntimeError("x")
    circular.__cause__ = circular  # as ``raise error from error`` leaves it
    assert not lost_a_peer(circular)
