"""How many blocks the KV cache gets, and why: a pure function of settings and free memory."""

from __future__ import annotations

from .errors import ConfigError
from .vllm_config import VllmConfig

_MIB = 2**20


def longest_request(max_model_len: int, num_tokens: int) -> int:
    """Most tokens that a request may come to have, prompt and output, where the whole cache holds
    ``num_tokens``. Its last token is never computed, so it needs no place there."""
    return min(max_model_len, num_tokens + 1)


def choose_num_blocks(
    vllm_config: VllmConfig, *, block_bytes: int, free_bytes: int, free_reason: str
) -> tuple[int, str]:
    """Blocks of the whole cache, and the reason for the log.

    Args:
        vllm_config: ``kv_cache_memory_bytes`` decides if it is set, else
            ``num_gpu_blocks_override``, else the smaller of what all sequences could need and
            half of the free memory.
        block_bytes: bytes of one block over all layers.
        free_bytes: memory that is free with the weights loaded.
        free_reason: where that number comes from.

    Raises:
        ConfigError: not even one block fits.
    """
    cache = vllm_config.cache_config
    if cache.kv_cache_memory_bytes is not None:
        given = cache.kv_cache_memory_bytes
        num_blocks = given // block_bytes
        reason = f"--kv-cache-memory-bytes {given}"
        if num_blocks < 1:
            raise ConfigError(
                f"--kv-cache-memory-bytes {given} is less than one block of {block_bytes} bytes "
                f"({cache.block_size} tokens)"
            )
        return num_blocks, reason
    if cache.num_gpu_blocks_override is not None:
        if cache.num_gpu_blocks_override < 1:
            raise ConfigError(
                f"--num-gpu-blocks-override {cache.num_gpu_blocks_override}: expected at least 1"
            )
        return cache.num_gpu_blocks_override, (
            f"--num-gpu-blocks-override {cache.num_gpu_blocks_override}"
        )
    return _choose_by_need(
        vllm_config, block_bytes=block_bytes, free_bytes=free_bytes, free_reason=free_reason
    )


def _choose_by_need(
    vllm_config: VllmConfig, *, block_bytes: int, free_bytes: int, free_reason: str
) -> tuple[int, str]:
    num_seqs = vllm_config.scheduler_config.max_num_seqs
    length = vllm_config.model_config.max_model_len
    needed = num_seqs * -(-length // vllm_config.cache_config.block_size)
    affordable = free_bytes // 2 // block_bytes
    if needed <= affordable:
        return needed, f"room for {num_seqs} sequences of {length} tokens"
    if affordable < 1:
        raise ConfigError(
            f"no memory for a KV cache: {free_reason}, and one block takes {block_bytes} bytes; "
            "free memory, or set --kv-cache-memory-bytes"
        )
    return affordable, (
        f"half of the free memory ({free_reason}); {num_seqs} sequences of {length} tokens would "
        f"take {needed * block_bytes / _MIB:.0f} MiB"
    )
