"""``Worker``: one device with its model: device set-up, memory, and the methods that executors
call. What happens in a step is the model runner's.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from hookserve.hookspecs import current

from . import resources
from .errors import ConfigError
from .model_runner import ModelRunner
from .platform import Platform
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)


class Worker:
    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int = 0,
        rank: int = 0,
        distributed_init_method: str | None = None,
        is_driver_worker: bool = True,
    ) -> None:
        self.vllm_config = vllm_config
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method
        self.is_driver_worker = is_driver_worker
        host = current()
        self.platform_owner = host.platform().plugin
        self.platform: type[Platform] = host.registry("platform").resolve(host.platform().name)
        self.device = vllm_config.device_config.device
        self.num_threads, self.threads_reason = resources.choose_num_threads()
        self.memory_reason = ""
        self.model_runner: ModelRunner | None = None

    def init_device(self) -> None:
        """Make the device ready; the model's type is checked here, before anything is read.

        Raises:
            ConfigError: the platform cannot compute in the model's type.
        """
        torch.set_num_threads(self.num_threads)
        with current().enter(self.platform_owner):
            self.platform.check_if_supports_dtype(self.vllm_config.model_config.dtype)
            backend = self.platform.get_attn_backend_cls(None, None)
            if backend:
                raise ConfigError(
                    f"platform {self.platform.device_name} asks for the attention backend "
                    f"{backend}; only the layers' own paged attention is available"
                )
            self.platform.set_device(self.device)
            self.platform.manual_seed_all(self.vllm_config.model_config.seed)
        self.model_runner = ModelRunner(self.vllm_config, self.device)

    @property
    def runner(self) -> ModelRunner:
        assert self.model_runner is not None, "init_device comes first"
        return self.model_runner

    def load_model(self) -> None:
        self.runner.load_model()

    def get_model(self) -> Any:
        return self.runner.model

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return self.runner.get_kv_cache_spec()

    def determine_available_memory(self) -> int:
        """Bytes that are free for the KV cache now, with the weights loaded."""
        with current().enter(self.platform_owner):
            num_bytes, self.memory_reason = self.platform.available_memory()
        return num_bytes

    def initialize_cache(self, num_blocks: int) -> None:
        self.vllm_config.cache_config.num_gpu_blocks = num_blocks
        self.runner.initialize_kv_cache(num_blocks)

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        return self.runner.execute_model(scheduler_output)

    def describe(self) -> dict[str, Any]:
        """Facts for the log and the front: plain data."""
        model = self.get_model()
        kind = type(model)
        return {
            "model_class": f"{kind.__module__}.{kind.__qualname__}",
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "dtype": self.vllm_config.model_config.dtype_name,
            "device": str(self.device),
            "num_threads": self.num_threads,
            "threads_reason": self.threads_reason,
            "memory_reason": self.memory_reason,
        }

    def check_health(self) -> bool:
        """True: the call itself is the answer."""
        return True

    def shutdown(self) -> None:
        self.model_runner = None
