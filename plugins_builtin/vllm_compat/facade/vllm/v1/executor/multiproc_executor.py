"""The executor with a process for each worker."""

from __future__ import annotations

from hookserve.engine.multiproc_executor import MultiprocExecutor

__all__ = ["MultiprocExecutor"]

__surface__ = {
    "MultiprocExecutor": "live: the executor mp. kv_output_aggregator is no argument of its "
    "collective_rpc, and functions do not reach its workers: name a method",
    "WorkerProc": "refused: a worker's process is started by the engine; name a class by "
    "--worker-cls",
}
