"""How many blocks the cache gets, by each rule and by which one."""

from __future__ import annotations

import msgspec
import pytest

from fake_engine import make_config
from hookserve.engine.config import CacheConfig
from hookserve.engine.errors import ConfigError
from hookserve.engine.kv_cache_size import choose_num_blocks
from hookserve.engine.vllm_config import VllmConfig


def choose(free_bytes: int = 10**9, block_bytes: int = 1000, **cache: int) -> tuple[int, str]:
    config = make_config(max_num_seqs=8, max_model_len=130, block_size=4)
    config = msgspec.structs.replace(config, cache=CacheConfig(block_size=4, **cache))
    return choose_num_blocks(
        VllmConfig.from_engine_config(config),
        block_bytes=block_bytes,
        free_bytes=free_bytes,
        free_reason="so much is free",
    )


def test_enough_memory_gives_every_sequence_its_whole_length():
    # 130 tokens take 33 blocks of 4.
    assert choose() == (8 * 33, "room for 8 sequences of 130 tokens")


def test_little_memory_gives_half_of_it():
    blocks, reason = choose(free_bytes=200_999)
    assert blocks == 100
    assert "half of the free memory" in reason and "so much is free" in reason


def test_bytes_win_over_blocks_and_blocks_over_memory():
    assert choose(kv_cache_memory_bytes=7999, num_gpu_blocks_override=3)[0] == 7
    assert choose(free_bytes=0, num_gpu_blocks_override=3)[0] == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_cache_memory_bytes": 999}, "--kv-cache-memory-bytes 999 is less than one block"),
        ({"num_gpu_blocks_override": 0}, "--num-gpu-blocks-override 0"),
        ({"free_bytes": 1999}, "no memory for a KV cache: so much is free"),
    ],
)
def test_less_than_a_block_is_refused_with_the_numbers(options, named):
    with pytest.raises(ConfigError, match=named):
        choose(**options)
