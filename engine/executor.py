"""Executors: how the engine's calls reach its workers.

A plugin may offer another one by the hook ``executor``. What a worker does with a call is the
worker's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from hookserve.hookspecs import current
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.report import ProcessReport

from .errors import ConfigError
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig
from .worker_class import make_worker
from .worker_extensions import call_worker


class Executor:
    """Base: every call goes through ``collective_rpc``, which a subclass implements; sections of
    the configuration are attributes."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.load_config = vllm_config.load_config
        self.parallel_config = vllm_config.parallel_config
        self.scheduler_config = vllm_config.scheduler_config
        self.device_config = vllm_config.device_config
        self.observability_config = vllm_config.observability_config
        self.worker_manifests: list[dict[str, Any]] = []
        """What became of the plugins in each process that was started, as plain data."""
        self._init_executor()

    @staticmethod
    def get_class(vllm_config: VllmConfig) -> type[Executor]:
        """The class that the configuration names.

        Raises:
            hookserve.hookspecs.HostError: there is none of that name, or it cannot be imported.
        """
        name = vllm_config.parallel_config.distributed_executor_backend
        found: type[Executor] = current().registry("executor").resolve(name)
        return found

    def _init_executor(self) -> None:
        """Start the workers; each has its device and its model afterwards."""
        raise TypeError(f"{type(self).__qualname__} must define _init_executor")

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """Call a method of every worker; the answers in the order of the ranks.

        Args:
            method: its name; where the workers are in this process also a function, which is given
                the worker first.
            non_block: the answer is a future, done by the time that it is returned.

        Raises:
            TimeoutError: an answer took longer than ``timeout`` seconds.
        """
        raise TypeError(f"{type(self).__qualname__} must define collective_rpc")

    def get_kv_cache_block_bytes(self) -> list[int]:
        """Bytes of one block over all layers, on each worker."""
        answers: list[int] = self.collective_rpc("get_kv_cache_block_bytes")
        return answers

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
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """As the base says; a call in this process runs to its end also when that is too late."""
        if non_block:  # of this class: a subclass' method has been called already
            own = UniProcExecutor.collective_rpc
            return done(lambda: own(self, method, timeout, args, kwargs))
        started = time.monotonic()
        if isinstance(method, str):
            result = call_worker(self.worker, method, args, kwargs or {})
        else:
            result = method(self.worker, *args, **kwargs or {})
        if timeout is not None and time.monotonic() - started > timeout:
            raise TimeoutError(f"worker 0 has not answered within {timeout:g} s")
        return [result]


def done(call: Callable[[], Any]) -> Future[Any]:
    """The future of a call that is made here and now."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except caught() as error:
        future.set_exception(error)
    return future
