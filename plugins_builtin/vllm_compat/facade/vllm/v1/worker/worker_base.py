"""What every worker is made with and must define."""

from __future__ import annotations

from hookserve.engine.worker_base import CompilationTimes, WorkerBase

__all__ = ["CompilationTimes", "WorkerBase"]

__surface__ = {
    "CompilationTimes": "live: what compile_or_warm_up_model answers",
    "WorkerBase": "live: base of the worker that --worker-cls or a platform names. Called: "
    "init_device, load_model, get_kv_cache_spec, determine_available_memory, "
    "initialize_cache(num_blocks), execute_model (which samples too), shutdown, and what "
    "collective_rpc names; not called: initialize_from_config, sample_tokens, "
    "execute_dummy_batch, take_draft_token_ids",
    "WorkerWrapperBase": "refused: executors hold the worker itself; subclass WorkerBase, or add "
    "methods by --worker-extension-cls",
}
