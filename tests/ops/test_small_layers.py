"""Norm, activation, embedding and logits against transformers or the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.context import TensorParallelGroup, set_tp_group
from hookserve.ops.layernorm import GemmaRMSNorm, LayerNorm, RMSNorm
from hookserve.ops.logits_processor import LogitsProcessor
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


def test_a_norm_without_a_weight_has_nothing_to_load() -> None:
    bare, norm = RMSNorm(30, 1e-5, None, False), RMSNorm(30, eps=1e-5)
    x = torch.randn(7, 30)
    assert torch.equal(bare(x), norm(x))
    assert not bare.state_dict() and not list(bare.parameters())
    with pytest.raises(ValueError, match="by the mean of 20 is not supported"):
        RMSNorm(30, var_hidden_size=20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_by_mean_and_variance_is_computed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = LayerNorm(30, eps=1e-5), torch.nn.LayerNorm(30, eps=1e-5)
    for name in ("weight", "bias"):
        getattr(ours, name).data.copy_(getattr(theirs, name).data.normal_())
    x = torch.randn(7, 30).to(dtype)
    normalised = ours(x)
    assert normalised.dtype == dtype
    assert torch.equal(normalised, theirs(x.float()).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemmas_norm_equals_transformers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = GemmaRMSNorm(30, eps=1e-5, dtype=dtype), Gemma2RMSNorm(30, eps=1e-5).to(dtype)
    weight = torch.randn(30).to(dtype)
    ours.weight.data.copy_(weight)
    theirs.weight.data.copy_(weight)
    x, residual = torch.randn(7, 30).to(dtype), torch.randn(7, 30).to(dtype)
    rtol = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(ours(x), theirs(x), rtol=rtol, atol=1e-6)
    normalised, total = ours(x, residual)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normalised, theirs(x + residual), rtol=rtol, atol=1e-6)


def test_norm_with_a_residual_returns_the_sum_and_changes_no_input() -> None:
    norm = RMSNorm(12)
    x, residual = torch.randn(3, 12), torch.randn(3, 12)
    before = x.clone(), residual.clone()
    normalised, total = norm(x, residual)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normalised, norm(x + residual))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_activation() -> None:
    x = torch.randn(3, 10)
    before = x.clone()
    torch.testing.assert_close(SiluAndMul()(x), F.silu(x[:, :5]) * x[:, 5:])
    assert torch.equal(x, before)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gated_gelu(approximate: str) -> None:
    x = torch.randn(3, 10)
    before = x.clone()
    want = F.gelu(x[:, :5], approximate=approximate) * x[:, 5:]
    torch.testing.assert_close(GeluAndMul(approximate=approximate)(x), want)
    assert torch.equal(x, before)


def test_an_unknown_approximation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'erf'.*'none' or 'tanh'"):
        GeluAndMul(approximate="erf")


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
