"""The worker of a CUDA device."""

from __future__ import annotations

from hookserve.engine.worker import Worker

__all__ = ["Worker"]

__surface__ = {
    "Worker": "live: the built-in worker of every device, that of a CPU too; --worker-cls takes "
    "subclasses, and what is patched here is on the path",
    "init_worker_distributed_environment": "refused: the ranks meet in Worker.init_device; "
    "subclass Worker and call its init_device",
}
