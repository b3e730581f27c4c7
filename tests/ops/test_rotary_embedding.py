"""Rotations against transformers' own frequencies, cosines and sines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.rotary_embedding import PartialRotaryEmbedding, RotaryEmbedding, get_rope
from hookserve.ops.rotary_frequencies import rotary_frequencies

HEADS, KV_HEADS, SIZE, TRAINED = 4, 2, 16, 512
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN | {"original_max_position_embeddings": 512},
    "yarn, trained on less": YARN | {"original_max_position_embeddings": 64},
    "yarn, by its ratio": YARN | {"factor": None, "original_max_position_embeddings": 128},
    "yarn, not truncated": YARN | {"original_max_position_embeddings": 512, "truncate": False},
    "yarn, other bounds": YARN
    | {"original_max_position_embeddings": 512, "beta_fast": 8, "beta_slow": 2},
    "yarn, bounds that meet": YARN
    | {"original_max_position_embeddings": 512, "beta_fast": 1e9, "beta_slow": 1e8},
    "yarn, stated factor": YARN
    | {"original_max_position_embeddings": 512, "attention_factor": 1.7},
    "yarn, magnitudes": YARN
    | {"original_max_position_embeddings": 512, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, one magnitude": YARN | {"original_max_position_embeddings": 512, "mscale": 0.7},
}


def llama_config(parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=HEADS * SIZE,
        num_attention_heads=HEADS,
        max_position_embeddings=TRAINED,
        rope_parameters=dict(parameters),
    )


@pytest.mark.parametrize("name", [name for name in ROPES if name != "default"])
@pytest.mark.parametrize("partial", [1.0, 0.5])
@pytest.mark.parametrize("length", [100, 2048])
def test_frequencies_equal_transformers(name: str, partial: float, length: int) -> None:
    parameters = ROPES[name] | {"partial_rotary_factor": partial}
    compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    want, want_factor = compute(llama_config(parameters), seq_len=length)
    got, factor = rotary_frequencies(int(SIZE * partial), TRAINED, parameters, length)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert factor == pytest.approx(want_factor, rel=1e-12)


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("joined", [True, False])
def test_rotation_equals_transformers(name: str, joined: bool) -> None:
    torch.manual_seed(0)
    torch.manual_seed(0)  # far from the start a large number may be off by more than the bound
    positions = torch.tensor([0, 1, 5, 2047])
    merged = torch.randn(4, (HEADS + 2 * KV_HEADS) * SIZE)
    q, k, _ = merged.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
    if not joined:
        q, k = q.clone(), k.clone()

    cos, sin = LlamaRotaryEmbedding(llama_config(ROPES[name]))(q, positions[None])
    want = apply_rotary_pos_emb(
        q.view(1, 4, HEADS, SIZE).transpose(1, 2), k.view(1, 4, KV_HEADS, SIZE).transpose(1, 2),
        cos, sin,
    )  # fmt: skip
    got = get_rope(SIZE, TRAINED, rope_parameters=ROPES[name])(positions, q, k)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(
            ours, theirs[0].transpose(0, 1).reshape(4, -1), rtol=0, atol=2e-4
        )


@pytest.mark.parametrize("joined", [True, False])
def test_a_part_of_a_head_turns_and_the_rest_stays(joined: bool) -> None:
    positions = torch.tensor([3, 70])
    merged = torch.randn(2, (HEADS + KV_HEADS) * SIZE)
    q, k = merged.split([HEADS * SIZE, KV_HEADS * SIZE], -1)
    if not joined:
        q, k = q.clone(), k.clone()
    rope = get_rope(
        SIZE, TRAINED, rope_parameters=ROPES["default"] | {"partial_rotary_factor": 0.5}
    )
    part = get_rope(SIZE // 2, TRAINED, rope_parameters=ROPES["default"])
    for got, x in zip(rope(positions, q, k), (q, k), strict=True):
        heads, turned = x.view(2, -1, SIZE), got.view(2, -1, SIZE)
        first = heads[..., : SIZE // 2].reshape(2, -1)
        want = part(positions, first, first)[0].view(2, -1, SIZE // 2)
        torch.testing.assert_close(turned[..., : SIZE // 2], want)
        assert torch.equal(turned[..., SIZE // 2 :], heads[..., SIZE // 2 :])


@pytest.mark.parametrize(("served", "seq_len"), [(300, 512), (1000, 1000), (None, 2048)])
def test_a_dynamic_rotation_is_that_of_the_longest_sequence_served(
    served: int | None, seq_len: int
) -> None:
    parameters = ROPES["dynamic"]
    with set_model_context(
        static_forward_context={}, dtype=torch.float32, block_size=4, max_model_len=served
    ):
        rope = get_rope(SIZE, TRAINED, rope_parameters=parameters)
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](llama_config(parameters), seq_len=seq_len)
    torch.testing.assert_close(rope.inv_freq, want, rtol=1e-6, atol=0)


def test_layers_of_a_model_share_a_rotation_and_a_steps_angles() -> None:
    with set_model_context(static_forward_context={}, dtype=torch.float32, block_size=4):
        rope, same = (get_rope(8, 64, rope_parameters={"rope_theta": 5.0}) for _ in range(2))
        other = get_rope(8, 64, rope_parameters={"rope_theta": 6.0})
    assert rope is same
    assert rope is not other

    metadata = AttentionMetadata(
        1, 3, 0, [0, 3], [3], torch.zeros(1, 1, dtype=torch.int64), torch.arange(3), 4
    )
    q = torch.randn(3, 8)
    with set_forward_context(ForwardContext(metadata, {})):
        first = rope(torch.tensor([0, 1, 2]), q, q)[0]
        again = rope(torch.tensor([5, 6, 7]), q, q)[0]  # other positions in the same step
    assert torch.equal(first, rope(torch.tensor([0, 1, 2]), q, q)[0])
    assert torch.equal(again, rope(torch.tensor([5, 6, 7]), q, q)[0])
    assert not torch.allclose(first, again)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "spiral"}, r"'spiral' is not supported; supported are default, linear"),
        ({"rope_type": "linear"}, r"'linear' needs 'factor'"),
        ({"rope_type": "dynamic"}, r"'dynamic' needs 'factor'"),
        (LLAMA3 | {"high_freq_factor": 1.0}, r"high_freq_factor above low_freq_factor, not 1.0"),
        (YARN | {"rope_theta": 1.0}, r"rope_theta above 1, not 1.0"),
        ({"partial_rotary_factor": 0.4}, r"3 of a head's 8 elements"),
        ({"partial_rotary_factor": 1.5}, r"12 of a head's 8 elements"),
        (
            {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.25},
            r"more than one pair",
        ),
    ],
)
def test_rotations_that_are_not_supported(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_rope(8, 64, rope_parameters=parameters)


def test_queries_turn_alone_where_there_are_no_keys() -> None:
    rope = get_rope(8, 64)
    positions, query, key = torch.arange(5), torch.randn(5, 16), torch.randn(5, 8)
    alone, nothing = rope(positions, query)
    assert nothing is None
    assert torch.equal(alone, rope(positions, query, key)[0])


def test_one_that_is_built_by_hand_is_that_of_its_base() -> None:
    made = RotaryEmbedding(8, 8, 64, 500.0, True, torch.float32)
    rope = get_rope(8, 64, rope_parameters={"rope_theta": 500.0})
    assert (type(rope), rope.base, rope.rotary_dim) == (RotaryEmbedding, 500.0, 8)
    assert torch.equal(made.inv_freq, rope.inv_freq)
    torch.testing.assert_close(made.inv_freq[1], torch.tensor(500.0**-0.25))
    half = PartialRotaryEmbedding(8, 4, 64, 500.0, True, torch.float32)
    assert torch.equal(half.inv_freq, RotaryEmbedding(4, 4, 64, 500.0, True, half.dtype).inv_freq)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, 4, 64, 500.0, True), "turns whole heads; a rotation of 4 of 8 elements is Partial"),
        ((8, 8, 64, 500.0, False), "interleaved pairs are not supported"),
    ],
)
def test_one_of_another_kind_cannot_be_built(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(*arguments, torch.float32)
