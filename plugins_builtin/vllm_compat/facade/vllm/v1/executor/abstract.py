"""What an executor is."""

from __future__ import annotations

from hookserve.engine.executor import Executor, UniProcExecutor

__all__ = ["Executor", "UniProcExecutor"]

__surface__ = {
    "Executor": "live: base of every executor; --distributed-executor-backend takes a class path. "
    "A subclass defines _init_executor and collective_rpc",
    "FailureCallback": "refused: a worker that ends raises in check_health and in the next call",
    "UniProcExecutor": "live: one worker in the engine's process",
}
