"""What is said of the scheduler."""

from __future__ import annotations

from hookserve.engine.vllm_config import SchedulerConfig

__all__ = ["SchedulerConfig"]

__surface__ = {
    "SchedulerConfig": "live: the scheduler is built with it",
}
