"""Executors: how the engine's calls reach its workers.

A plugin may offer another one by the hook ``executor``. What a worker does with a call is the
worker's business.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hookserve.hookspecs.report import ProcessReport

from .errors import ConfigError
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig
from .worker_class import make_worker
from .worker_extensions import call_worker


class Executor:
    """Base: every call goes through ``collective_rpc``, which a subclass implements."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.worker_manifests: list[dict[str, Any]] = []
        """What became of the plugins in each process that was started, as plain data."""
        self._init_executor()

    def _init_executor(self) -> None:
        """Start the workers; each has its device and its model afterwards."""
        raise TypeError(f"{type(self).__qualname__} must define _init_executor")

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker; the answers in the order of the ranks.

        Raises:
            TimeoutError: an answer took longer than ``timeout`` seconds.
        """
        raise TypeError(f"{type(self).__qualname__} must define collective_rpc")

    def get_kv_cache_block_bytes(self) -> list[int]:
        """Bytes of one block over all layers, on each worker."""
        return self.collective_rpc("get_kv_cache_block_bytes")

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache on the worker that has least."""
        free: list[int] = self.collective_rpc("determine_available_memory")
        return min(free)

    def initialize_cache(self, num_blocks: int) -> None:
        self.collective_rpc("initialize_cache", args=(num_blocks,))

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        output: ModelRunnerOutput = self.collective_rpc("execute_model", args=(scheduler_output,))[
            0
        ]
        return output

    def describe(self) -> dict[str, Any]:
        """Facts about the first worker and its model."""
        facts: dict[str, Any] = self.collective_rpc("describe")[0]
        return facts

    def describe_plugins(self) -> list[ProcessReport]:
        """The live plugin reports of each process that was started; here none is."""
        return []

    def watched_fds(self) -> list[int]:
        """Descriptors that become readable when a worker ends; ``check_health`` then raises."""
        return []

    def check_health(self) -> None:
        """Raises ``WorkerError`` if a worker has ended. Here none can without the engine."""

    def shutdown(self) -> None:
        self.collective_rpc("shutdown")


class UniProcExecutor(Executor):
    """One worker, in this process."""

    def _init_executor(self) -> None:
        size = self.vllm_config.parallel_config.tensor_parallel_size
        if size != 1:
            raise ConfigError(
                f"tensor_parallel_size {size} needs {size} workers; the executor 'uni' has one"
            )
        self.worker = make_worker(self.vllm_config)
        self.collective_rpc("init_device")
        self.collective_rpc("load_model")

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As the base says; a call in this process runs to its end also when that is too late."""
        started = time.monotonic()
        result = call_worker(self.worker, method, args, kwargs or {})
        if timeout is not None and time.monotonic() - started > timeout:
            raise TimeoutError(f"worker 0 has not answered within {timeout:g} s")
        return [result]
