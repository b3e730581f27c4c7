"""``Worker``: one device with its model: device set-up, memory, and the methods that executors
call. What happens in a step is the model runner's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch

from hookserve.hookspecs import current
from hookserve.ops.context import TensorParallelGroup, set_tp_group, stay_in_tp_group

from . import resources
from .errors import ConfigError
from .late_refusals import late_refusals
from .model_runner import ModelRunner
from .op_choices import op_reports, warn_of_loose_ends
from .platform_calls import choose_attention, import_platform
from .plugin_code import as_plugin
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig
from .worker_base import WorkerBase
from .worker_hooks import WorkerHooks

logger = logging.getLogger(__name__)


class Worker(WorkerBase):
    """One rank. Every rank is called with the same, in the same order."""

    device: torch.device
    model_runner: ModelRunner | None

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int = 0,
        rank: int = 0,
        distributed_init_method: str | None = None,
        is_driver_worker: bool = True,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        host = current()
        self.platform_owner = host.platform().plugin
        self.platform = import_platform(host.platform(), host)
        self.world_size = vllm_config.parallel_config.tensor_parallel_size
        self.tp_group = TensorParallelGroup(rank=0, world_size=1)
        """The ranks that have met; this one alone until ``init_device``."""
        self.device = vllm_config.device_config.device
        if self.world_size > 1 and not self._shares_the_machine:
            self.device = torch.device(self.device.type, local_rank)
        self.num_threads, self.threads_reason = resources.choose_num_threads(
            num_ranks=self.world_size
        )
        self.memory_reason = ""
        self.hooks = WorkerHooks(host)
        self.model_runner = None

    @property
    def _shares_the_machine(self) -> bool:
        """Whether the ranks have one memory, and not a device each."""
        return self.device.type == "cpu"

    def init_device(self) -> None:
        """Make the device ready and meet the other ranks; the model's type is checked here,
        before anything is read.

        Raises:
            ConfigError: the platform cannot compute in the model's type, or torch knows no such
                device.
            WorkerError: the ranks did not find each other.
            WorkerPluginsError: a plugin's logits processor cannot be built; everything is to start
                again without it.
        """
        torch.set_num_threads(self.num_threads)
        check_device(self.device, self.platform_owner.identity)
        with as_plugin(current(), self.platform_owner, "the start of the device"):
            self.platform.import_kernels()
            self.platform.check_if_supports_dtype(self.vllm_config.model_config.dtype)
            attention = self.vllm_config.attention_config
            if attention.backend is None:
                attention.backend = choose_attention(self.platform, self.vllm_config)
            self.platform.set_device(self.device)
            self.platform.manual_seed_all(self.vllm_config.model_config.seed)
        if self.world_size > 1:
            self._meet_ranks()
        with late_refusals(current()):
            self.model_runner = ModelRunner(self.vllm_config, self.device)

    def _meet_ranks(self) -> None:
        from .distributed import add_communicator, join_ranks

        backend = self.platform.dist_backend
        self.tp_group = join_ranks(
            backend, self.distributed_init_method, self.rank, self.world_size, self.device
        )
        stay_in_tp_group(self.tp_group)  # for methods that others than this class define
        with as_plugin(current(), self.platform_owner, "the device communicator"):
            cls = current().adapters.import_path(self.platform.get_device_communicator_cls())
            add_communicator(self.tp_group, cls, backend, self.device)

    @property
    def runner(self) -> ModelRunner:
        assert self.model_runner is not None, "init_device comes first"
        return self.model_runner

    def load_model(self) -> None:
        """Build and fill the model, and tell the plugins.

        Raises:
            WorkerPluginsError: a plugin failed at it; everything is to start again without it.
        """
        with set_tp_group(self.tp_group):
            with late_refusals(current()):
                self.runner.load_model()
            ops = self.vllm_config.compilation_config.ops
            if ops is not None:  # a worker of a plugin's may load by other ways
                if self.is_driver_worker:  # all ranks have built the same
                    warn_of_loose_ends(ops)
                current().describe_ops = partial(op_reports, ops)
            self.hooks.model_loaded(self.runner.model, self.vllm_config)
            communicator = self.tp_group.communicator
            if communicator is not None:
                with as_plugin(current(), self.platform_owner, "the device communicator"):
                    communicator.prepare_communication_buffer_for_model(self.runner.model)
            if ops is not None:
                from .model_parts import heed_patched_attention

                ops.heed_late_patches(self.runner.model.modules())
                heed_patched_attention(self.vllm_config, current())

    def get_model(self) -> Any:
        return self.runner.model

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return self.runner.get_kv_cache_spec()

    def determine_available_memory(self) -> int:
        """Bytes that are free for this rank's KV cache now, with all ranks' weights loaded."""
        with current().enter(self.platform_owner):
            num_bytes, self.memory_reason = self.platform.available_memory()
        if self.world_size > 1 and self._shares_the_machine:
            self.memory_reason += f", shared by {self.world_size} ranks"
            num_bytes //= self.world_size
        return num_bytes

    def initialize_cache(self, num_blocks: int) -> None:
        self.vllm_config.cache_config.num_gpu_blocks = num_blocks
        self.runner.initialize_kv_cache(num_blocks)
        self.compile_or_warm_up_model()

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        with set_tp_group(self.tp_group):
            batch = self.hooks.before_step(scheduler_output)
            output = self.runner.execute_model(scheduler_output)
            if batch is not None:
                self.hooks.after_step(batch, output)
        return output

    def num_collectives(self) -> dict[str, int]:
        """How often this rank has exchanged tensors with the others since the start."""
        return {
            "all_reduces": self.tp_group.num_all_reduces,
            "all_gathers": self.tp_group.num_all_gathers,
        }

    def describe(self) -> dict[str, Any]:
        """Facts for the log and the front: plain data."""
        model = self.get_model()
        kind = type(model)
        return {
            "model_class": f"{kind.__module__}.{kind.__qualname__}",
            "num_parameters": sum(p.numel() for p in model.parameters()),
            "weight_bytes": weight_bytes(model),
            "dtype": self.vllm_config.model_config.dtype_name,
            "device": str(self.device),
            "rank": self.rank,
            "num_threads": self.num_threads,
            "threads_reason": self.threads_reason,
            "memory_reason": self.memory_reason,
        }

    def shutdown(self) -> None:
        """Let go of the model and its cache, which the configuration knows by its layers too."""
        self.model_runner = None
        self.vllm_config.compilation_config.static_forward_context.clear()
        self.vllm_config.compilation_config.ops = None
        if self.tp_group.world_size > 1:
            from .distributed import leave_ranks

            if self.tp_group.communicator is not None:
                with as_plugin(current(), self.platform_owner, "the device communicator"):
                    self.tp_group.communicator.destroy()
            leave_ranks()


def check_device(device: torch.device, owner: str) -> None:
    """
    Raises:
        ConfigError: torch has no such device here.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"platform {owner} computes on {str(device)!r}, which torch does not have here: "
            f"{first:.200}"
        ) from error


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of the weights that this rank holds, packed copies beside plain ones included."""
    held = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    for module in model.modules():
        packed = module.__dict__.get("packed_weight")
        if packed is not None and not module.weight.is_mkldnn:
            held += packed.numel() * packed.element_size()
    return held
