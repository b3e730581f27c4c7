"""The worker of a CPU."""

from __future__ import annotations

from hookserve.engine.worker import Worker as CPUWorker

__all__ = ["CPUWorker"]

__surface__ = {
    "CPUWorker": "live: the built-in worker, which is one class for every device",
}
