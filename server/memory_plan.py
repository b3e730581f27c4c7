"""The KV cache as it will be sized, told before anything is loaded.

The engine decides with the weights in memory; here their size is estimated from the files.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

from hookserve.engine.config import EngineConfig
from hookserve.engine.kv_cache_size import choose_num_blocks
from hookserve.engine.vllm_config import VllmConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MIB = 2**20


@dataclass(frozen=True)
class MemoryPlan:
    num_blocks: int
    block_size: int
    block_bytes: int
    """Of one rank: each holds its own heads' part of every block."""
    num_ranks: int
    weight_bytes: int
    """Of all ranks."""
    reason: str

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def num_bytes(self) -> int:
        """Of all ranks."""
        return self.num_blocks * self.block_bytes * self.num_ranks

    def __str__(self) -> str:
        return (
            f"{self.num_tokens} tokens in {self.num_blocks} blocks, "
            f"{self.num_bytes / _MIB:.0f} MiB: {self.reason}"
        )


def plan_memory(config: EngineConfig, platform: Any) -> MemoryPlan:
    """Args:
    platform: the platform's class, asked for its free memory.

    Raises:
        ConfigError: not even one block fits.
    """
    tree = VllmConfig.from_engine_config(config)
    model, parallel = tree.model_config, tree.parallel_config
    # A key and a value for each token, layer and head.
    token_bytes = (
        2
        * model.get_num_layers(parallel)
        * model.get_num_kv_heads(parallel)
        * model.get_head_size()
        * DTYPE_BYTES[config.model.dtype]
    )
    block_bytes = token_bytes * config.cache.block_size
    weight_bytes = estimate_weight_bytes(config)
    ranks = parallel.tensor_parallel_size
    free, reason = platform.available_memory()
    # Ranks on a CPU share its memory and each hold a part of the weights; a device is one rank's.
    is_shared = config.device.device_type == "cpu"
    mine = weight_bytes if is_shared else weight_bytes // ranks
    free = max(0, free - mine) // (ranks if is_shared else 1)
    each = f", for each of {ranks} ranks" if ranks > 1 and is_shared else ""
    num_blocks, why = choose_num_blocks(
        tree,
        block_bytes=block_bytes,
        free_bytes=free,
        free_reason=f"{reason}, less {mine / _MIB:.0f} MiB for the weights{each}",
    )
    return MemoryPlan(num_blocks, config.cache.block_size, block_bytes, ranks, weight_bytes, why)


def estimate_weight_bytes(config: EngineConfig) -> int:
    """Bytes of the weights in the dtype that they will have, from the files alone."""
    path, itemsize = config.model.path, DTYPE_BYTES[config.model.dtype]
    if config.model.format == "gguf":
        from hookserve.engine.gguf import GGUFFile

        file = GGUFFile.open(path)
        return sum(math.prod(tensor.shape) for tensor in file.tensors.values()) * itemsize
    stored = sum(
        entry.stat().st_size for entry in os.scandir(path) if entry.name.endswith(".safetensors")
    )
    stated = config.model.hf_config.get("dtype") or config.model.hf_config.get("torch_dtype")
    stored_itemsize = DTYPE_BYTES.get(str(stated).removeprefix("torch."), 4)
    return stored * itemsize // stored_itemsize
