"""``WorkerBase``: what every worker is made with and must define, for classes that plugins name.

The built-in worker is ``worker``'s; which class is one, ``worker_class``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .step import ModelRunnerOutput, SchedulerOutput
    from .vllm_config import VllmConfig


class CompilationTimes(NamedTuple):
    """Seconds that compiling took."""

    language_model: float
    encoder: float


class WorkerBase:
    """One rank, called by an executor in this order: ``init_device``, ``load_model``,
    ``get_kv_cache_block_bytes``, ``determine_available_memory``, ``initialize_cache``, and then
    ``execute_model`` for each step, ``shutdown`` in the end.

    Attributes:
        vllm_config: whose sections are attributes too (``model_config``, ``cache_config``, ...).
        device: where the tensors are, from ``init_device`` on.
        model_runner: what runs the model, from ``init_device`` on.
    """

    device: torch.device | None = None
    model_runner: Any = None

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int = 0,
        rank: int = 0,
        distributed_init_method: str | None = None,
        is_driver_worker: bool = True,
    ) -> None:
        """
        Args:
            local_rank: number of the device on this machine.
            distributed_init_method: where the ranks meet, a URL of ``torch.distributed``; ``None``
                where there is one.
            is_driver_worker: whether it is the first rank.
        """
        self.vllm_config = vllm_config
        self.local_rank = local_rank
        self.rank = rank
        self.distributed_init_method = distributed_init_method
        self.is_driver_worker = is_driver_worker
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.load_config = vllm_config.load_config
        self.parallel_config = vllm_config.parallel_config
        self.scheduler_config = vllm_config.scheduler_config
        self.device_config = vllm_config.device_config
        self.compilation_config = vllm_config.compilation_config
        self.observability_config = vllm_config.observability_config
        self.lora_config = vllm_config.lora_config
        self.speculative_config = vllm_config.speculative_config
        self.kv_transfer_config = vllm_config.kv_transfer_config

    # -- what a class must define -----------------------------------------------------------------

    def init_device(self) -> None:
        """Make the device ready and meet the other ranks."""
        raise self._lacks("init_device")

    def load_model(self) -> None:
        """Build and fill the model."""
        raise self._lacks("load_model")

    def get_model(self) -> nn.Module:
        raise self._lacks("get_model")

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """What each attention layer, by its prefix, wants to keep of each token."""
        raise self._lacks("get_kv_cache_spec")

    def determine_available_memory(self) -> int:
        """Bytes that are free for this rank's KV cache now."""
        raise self._lacks("determine_available_memory")

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the cache.

        Args:
            num_blocks: blocks for requests.
        """
        raise self._lacks("initialize_cache")

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens, and sample."""
        raise self._lacks("execute_model")

    def _lacks(self, name: str) -> TypeError:
        return TypeError(f"{type(self).__qualname__} must define {name}")

    # -- what it has ------------------------------------------------------------------------------

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Called by the built-in worker once the cache is there. Nothing is compiled."""
        return CompilationTimes(0.0, 0.0)

    def get_kv_cache_block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank."""
        return sum(spec.page_size_bytes for spec in self.get_kv_cache_spec().values())

    def apply_model(self, function: Callable[[nn.Module], Any]) -> Any:
        """What the function makes of this rank's model."""
        return function(self.get_model())

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    @property
    def vocab_size(self) -> int:
        return self.model_config.get_vocab_size()

    def describe(self) -> dict[str, Any]:
        """Facts for the log and the front: plain data. A class may say more."""
        kind = type(self.get_model())
        return {
            "model_class": f"{kind.__module__}.{kind.__qualname__}",
            "num_parameters": sum(p.numel() for p in self.get_model().parameters()),
            "dtype": self.model_config.dtype_name,
            "device": str(self.device),
            "rank": self.rank,
        }

    def check_health(self) -> bool:
        """True: the call itself is the answer."""
        return True

    def shutdown(self) -> None:
        """Let go of what was made; called once."""
