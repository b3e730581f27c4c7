"""The executor with one worker, in the engine's process."""

from __future__ import annotations

from hookserve.engine.executor import UniProcExecutor

__all__ = ["UniProcExecutor"]

__surface__ = {
    "ExecutorWithExternalLauncher": "refused: ranks are started by the engine "
    "(--tensor-parallel-size), not by torchrun",
    "UniProcExecutor": "live: the executor uni",
}
