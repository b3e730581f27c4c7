"""Norm, rotation, activation, embedding and logits against transformers or the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from hookserve.ops.activation import SiluAndMul
from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    TensorParallelGroup,
    set_forward_context,
    set_model_context,
    set_tp_group,
)
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.rotary_embedding import get_rope
from hookserve.ops.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_norm_equals_transformers(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    ours, theirs = RMSNorm(30, eps=1e-5, dtype=dtype), LlamaRMSNorm(30, eps=1e-5).to(dtype)
    weight = torch.randn(30).to(dtype)
    ours.weight.data.copy_(weight)
    theirs.weight.data.copy_(weight)
    x = (torch.randn(7, 30) * scale).to(dtype)
    rtol = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(ours(x), theirs(x), rtol=rtol, atol=1e-6)


def test_norm_with_a_residual_returns_the_sum_and_changes_no_input() -> None:
    norm = RMSNorm(12)
    x, residual = torch.randn(3, 12), torch.randn(3, 12)
    before = x.clone(), residual.clone()
    normalised, total = norm(x, residual)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normalised, norm(x + residual))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
]


@pytest.mark.parametrize("parameters", ROPES, ids=lambda parameters: parameters["rope_type"])
@pytest.mark.parametrize("joined", [True, False])
def test_rotation_equals_transformers(parameters: dict[str, Any], joined: bool) -> None:
    heads, kv_heads, size = 4, 2, 16
    config = LlamaConfig(
        hidden_size=heads * size, num_attention_heads=heads, rope_parameters=dict(parameters)
    )
    positions = torch.tensor([0, 1, 5, 4000])
    merged = torch.randn(4, (heads + 2 * kv_heads) * size)
    q, k, _ = merged.split([heads * size, kv_heads * size, kv_heads * size], -1)
    if not joined:
        q, k = q.clone(), k.clone()

    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    want = apply_rotary_pos_emb(
        q.view(1, 4, heads, size).transpose(1, 2), k.view(1, 4, kv_heads, size).transpose(1, 2),
        cos, sin,
    )  # fmt: skip
    got = get_rope(size, 131072, rope_parameters=parameters)(positions, q, k)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(
            ours, theirs[0].transpose(0, 1).reshape(4, -1), rtol=0, atol=1e-4
        )


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
        ({"rope_type": "dynamic"}, r"'dynamic' is not supported; supported are default, linear"),
        ({"rope_type": "linear"}, r"'linear' needs 'factor'"),
        ({"partial_rotary_factor": 0.5}, r"a part of a head"),
    ],
)
def test_rotations_that_are_not_supported(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_rope(8, 64, rope_parameters=parameters)


def test_activation() -> None:
    x = torch.randn(3, 10)
    before = x.clone()
    torch.testing.assert_close(SiluAndMul()(x), F.silu(x[:, :5]) * x[:, 5:])
    assert torch.equal(x, before)


def fill(layer: VocabParallelEmbedding, weight: torch.Tensor) -> None:
    layer.weight.weight_loader(layer.weight, weight)  # type: ignore[operator, union-attr]


def test_embedding_rows_beyond_the_vocabulary_are_zero() -> None:
    layer = VocabParallelEmbedding(10, 3, padding_size=8)
    assert layer.num_embeddings_padded == 16
    weight = torch.randn(10, 3)
    fill(layer, weight)
    assert torch.equal(layer(torch.tensor([9, 0])), weight[[9, 0]])
    assert not layer.weight[10:].any()


def test_embeddings_of_two_ranks_sum_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorParallelGroup, "all_reduce", lambda self, x: x)
    weight, ids = torch.randn(10, 3), torch.tensor([0, 7, 8, 9])
    total = torch.zeros(4, 3)
    for rank in range(2):
        with set_tp_group(TensorParallelGroup(rank, 2)):
            layer = VocabParallelEmbedding(10, 3, padding_size=4)
        fill(layer, weight)
        total += layer(ids)
    assert torch.equal(total, weight[ids])


def test_a_vocabulary_of_another_size_is_refused() -> None:
    layer = VocabParallelEmbedding(10, 3, prefix="embed")
    with pytest.raises(ValueError, match=r"embed has 9 rows .* vocabulary has 10"):
        fill(layer, torch.zeros(9, 3))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_leave_out_the_padding(tied: bool) -> None:
    weight, hidden = torch.randn(10, 24), torch.randn(2, 24)
    embedding = VocabParallelEmbedding(10, 24)
    head: Any = ParallelLMHead(10, 24)
    if tied:
        head = head.tie_weights(embedding)
    fill(head, weight)
    head.quant_method.process_weights_after_loading(head)
    logits = LogitsProcessor(10)(head, hidden)
    torch.testing.assert_close(logits, hidden @ weight.T)
    if tied:  # rows are still looked up
        assert torch.equal(embedding(torch.tensor([3])), weight[[3]])


def test_logits_scale_cap_and_bias() -> None:
    head = ParallelLMHead(10, 24, bias=True, padding_size=1)
    weight, bias, hidden = torch.randn(10, 24), torch.randn(10), torch.randn(2, 24)
    fill(head, weight)
    assert head.bias is not None
    head.bias.data.copy_(bias)
    logits = LogitsProcessor(10, scale=0.5, soft_cap=3.0)(head, hidden)
    torch.testing.assert_close(logits, 3.0 * torch.tanh((hidden @ weight.T + bias) / 3.0) * 0.5)
    given = torch.randn(2, 10)
    assert torch.equal(LogitsProcessor(10, logits_as_input=True)(head, given), given)
