"""What the engine asks of a scheduler."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.scheduler import PauseState, SchedulerInterface

__all__ = ["PauseState", "SchedulerInterface"]

__surface__ = {
    "PauseState": "shape: nobody pauses a scheduler",
    "SchedulerInterface": "live: the engine drives a subclass that --scheduler-cls names, through "
    "the methods that are abstract here; steps have the form of .output",
}
