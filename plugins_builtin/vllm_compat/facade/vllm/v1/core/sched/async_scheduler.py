"""The engine's scheduler, under the name of one that works ahead."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.scheduler import AsyncScheduler

__all__ = ["AsyncScheduler"]

__surface__ = {
    "AsyncScheduler": "live: as Scheduler, which it is: one step is under way at a time, and none "
    "is scheduled before the tokens of the last one are known",
}
