"""Executors: how the engine's calls reach its workers.

A plugin may offer another one by the hook ``executor``. What a worker does with a call is the
worker's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hookserve.hookspecs import PluginError, current
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.targets import import_target

from .errors import ConfigError
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig


class Executor:
    """Base: every call goes through ``collective_rpc``, which a subclass implements."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self._init_executor()

    def _init_executor(self) -> None:
        """Start the workers; each has its device and its model afterwards."""
        raise TypeError(f"{type(self).__qualname__} must define _init_executor")

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call a method of every worker; the answers in the order of the ranks."""
        raise TypeError(f"{type(self).__qualname__} must define collective_rpc")

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The first worker's; each attention layer's specification by its prefix."""
        spec: dict[str, Any] = self.collective_rpc("get_kv_cache_spec")[0]
        return spec

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
        path = self.vllm_config.parallel_config.worker_cls
        platform = current().platform()  # which chose the class
        with current().enter(platform.plugin):
            try:
                worker_cls = import_target(path)
            except caught() as error:
                message = f"worker class {path} raised {describe_error(error)}"
                raise PluginError(platform.owner, "import", message) from error
            self.worker = worker_cls(self.vllm_config)
        self.collective_rpc("init_device")
        self.collective_rpc("load_model")

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        return [getattr(self.worker, method)(*args, **(kwargs or {}))]
