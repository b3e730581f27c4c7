"""What a configuration says to a layer, from every spelling in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hookserve.plugins_builtin.config_fields import (
    head_size,
    layer_window,
    num_key_heads,
    rope_parameters,
)
from hookserve.plugins_builtin.gemma2 import Gemma2Attention
from hookserve.plugins_builtin.llama import LlamaAttention
from hookserve.plugins_builtin.mistral import MistralAttention
from hookserve.plugins_builtin.qwen2 import Qwen2Attention
from hookserve.plugins_builtin.qwen3 import Qwen3Attention


class Settings:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Settings(), {"rope_theta": 10000.0}),
        (Settings(rope_theta=5.0, rope_scaling=None), {"rope_theta": 5.0}),
        (
            Settings(rope_theta=5.0, rope_scaling={"rope_type": "linear", "factor": 2.0}),
            {"rope_theta": 5.0, "rope_type": "linear", "factor": 2.0},
        ),
        (
            Settings(rope_parameters={"rope_type": "default", "rope_theta": 7.0}),
            {"rope_theta": 7.0, "rope_type": "default"},
        ),
        (
            Settings(rope_theta=5.0, partial_rotary_factor=0.25),
            {"rope_theta": 5.0, "partial_rotary_factor": 0.25},
        ),
    ],
)
def test_both_spellings_of_rotations(config: Settings, expected: dict[str, Any]) -> None:
    assert rope_parameters(config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Settings(), [None] * 4),
        (Settings(sliding_window=None), [None] * 4),
        (Settings(sliding_window=8), [8] * 4),
        (Settings(sliding_window=8, use_sliding_window=False), [None] * 4),
        (Settings(sliding_window=8, max_window_layers=3), [None, None, None, 8]),
        (
            Settings(
                sliding_window=8,
                layer_types=["sliding_attention", "full_attention"] * 2,
                max_window_layers=3,
            ),
            [8, None, 8, None],
        ),
    ],
)
def test_which_layers_have_a_window(config: Settings, expected: list[int | None]) -> None:
    assert windows(config, {}) == expected


def test_a_window_of_all_layers_needs_no_number_in_the_name() -> None:
    assert layer_window(Settings(sliding_window=8), "encoder", {}) == 8


def windows(config: Settings, defaults: Mapping[str, Any]) -> list[int | None]:
    return [layer_window(config, f"model.layers.{index}.attn", defaults) for index in range(4)]


def test_what_is_stated_counts_more_than_the_architectures_own() -> None:
    own = {"sliding_window": 6, "use_sliding_window": False, "max_window_layers": 3}
    assert windows(Settings(), own) == [None] * 4
    assert windows(Settings(use_sliding_window=True), own) == [None, None, None, 6]
    assert windows(Settings(use_sliding_window=True, sliding_window=None), own) == [None] * 4
    every = Settings(use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert windows(every, own) == [8] * 4


@pytest.mark.parametrize(
    ("attention", "theirs"),
    [
        (MistralAttention, "MistralConfig"),
        (Qwen2Attention, "Qwen2Config"),
        (Qwen3Attention, "Qwen3Config"),
        (Gemma2Attention, "Gemma2Config"),
    ],
)
def test_what_is_not_stated_is_as_in_transformers(
    attention: type[LlamaAttention], theirs: str
) -> None:
    import transformers

    # Qwen's window is hidden unless it is used.
    config = getattr(transformers, theirs)(use_sliding_window=True)
    for key, value in attention.config_defaults.items():
        if key != "use_sliding_window":
            assert getattr(config, key) == value, key
    stated = getattr(getattr(transformers, theirs)(), "use_sliding_window", None)
    assert attention.config_defaults.get("use_sliding_window") == stated


def test_sizes_that_may_be_left_out() -> None:
    assert head_size(Settings(hidden_size=12, num_attention_heads=3)) == 4
    assert head_size(Settings(hidden_size=12, num_attention_heads=3, head_dim=5)) == 5
    assert num_key_heads(Settings(num_attention_heads=3)) == 3
    assert num_key_heads(Settings(num_attention_heads=3, num_key_value_heads=1)) == 1
