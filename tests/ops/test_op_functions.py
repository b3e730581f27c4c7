"""Ops that are no classes: who provides them, what a provider is given, and what the layers compute
where it takes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from hookserve.hookspecs import OpProvider, PluginError
from hookserve.ops import linear
from hookserve.ops.attention import Attention
from hookserve.ops.attention_backend import AttentionBackend, AttentionImpl
from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    set_forward_context,
    set_model_context,
)
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.dispatch import OpSet
from hookserve.ops.linear import ColumnParallelLinear, RowParallelLinear
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.op_references import REFERENCES
from hookserve.ops.paged_attention import PagedAttentionBackend, PagedAttentionImpl
from hookserve.ops.provided_attention import ATTENTION_OPS
from hookserve.ops.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from op_sets import make_op_set

ME = "dist:hookserve:me"
BF16 = torch.bfloat16


class Provides:
    """Computes an op by its definition, and keeps what it was called with."""

    def __init__(self, op: str, takes: bool = True) -> None:
        self.op, self.takes = op, takes
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, *given: Any) -> Any:
        self.seen.append(given)
        return REFERENCES[self.op](*given) if self.takes else NotImplemented


def providing(*provided: Provides, **options: Any) -> OpSet:
    declared = [OpProvider(each.op, "mine", each) for each in provided]
    return make_op_set({ME: declared}, **options)


def build(ops: OpSet | None, make: Callable[[], Any], **options: Any) -> Any:
    options = {"dtype": torch.float32, "block_size": 4, "static_forward_context": {}} | options
    with set_model_context(ops=ops, **options):
        return make()


def table(ops: OpSet) -> dict[str, tuple[str, str, int, int]]:
    return {row.op: (row.implementation, row.owner, row.built, row.calls) for row in ops.rows()}


# -- products and embeddings -----------------------------------------------------------------------


@pytest.mark.parametrize("takes", [True, False])
def test_every_linear_layer_multiplies_by_the_provider(takes: bool) -> None:
    provided = Provides("linear", takes)
    ops = providing(provided)
    first, second = build(
        ops, lambda: (ColumnParallelLinear(6, 4), RowParallelLinear(4, 3, bias=False))
    )
    for layer in (first, second):
        layer.weight.data.normal_()
        layer.quant_method.process_weights_after_loading(layer)
    x = torch.randn(2, 6)
    torch.testing.assert_close(first(x)[0], x @ first.weight.T + first.bias)
    torch.testing.assert_close(second(x[:, :4])[0], x[:, :4] @ second.weight.T)
    assert [
        (each[1] is layer.weight, each[2] is layer.bias)
        for each, layer in zip(provided.seen, (first, second), strict=True)
    ] == [(True, True), (True, True)]
    assert table(ops)["linear"] == ("mine", ME, 2, 2)


def test_a_provider_of_products_reads_the_plain_weights(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_log_once", linear._log_once.__wrapped__)
    provided = Provides("linear")
    layer = build(
        providing(provided, dtype=BF16), lambda: ColumnParallelLinear(24, 40, params_dtype=BF16)
    )
    with caplog.at_level(logging.INFO, "hookserve"):
        layer.quant_method.process_weights_after_loading(layer)
    assert not layer.weight.is_mkldnn
    assert caplog.messages == [f"linear layers use plain weights: 'mine' of {ME} provides linear"]
    assert layer(torch.ones(1, 24, dtype=BF16))[0].shape == (1, 40) and provided.seen


@pytest.mark.parametrize("takes", [True, False])
def test_rows_are_looked_up_and_scored_by_the_providers(takes: bool) -> None:
    rows, scores = Provides("embedding", takes), Provides("logits", takes)
    ops = providing(rows, scores)
    embed, head = build(
        ops, lambda: (VocabParallelEmbedding(70, 4), ParallelLMHead(70, 4, bias=True))
    )
    for layer in (embed, head):
        layer.weight.data.normal_()
    ids = torch.tensor([3, 69, 3])
    hidden = embed(ids)
    assert torch.equal(hidden, embed.weight[ids])
    logits = build(ops, lambda: LogitsProcessor(70))(head, hidden)
    torch.testing.assert_close(logits, (hidden @ head.weight.T)[:, :70])
    assert rows.seen[0][0] is ids and rows.seen[0][1] is embed.weight
    assert scores.seen[0][1] is head.weight and scores.seen[0][2] is head.bias
    assert table(ops)["embedding"] == table(ops)["logits"] == ("mine", ME, 1, 1)
    tied = build(ops, lambda: ParallelLMHead(70, 4)).tie_weights(embed)
    build(ops, lambda: LogitsProcessor(70))(tied, hidden)
    assert scores.seen[1][1] is embed.weight, "also of a tied head"


# -- attention -------------------------------------------------------------------------------------


def attention(ops: OpSet | None, dtype: torch.dtype = torch.float32, **options: Any) -> Attention:
    layer: Attention = build(
        ops,
        lambda: Attention(6, 32, 0.2, 2, prefix="x", logits_soft_cap=5.0),
        dtype=dtype,
        **options,
    )
    cache = torch.zeros(layer.kv_cache_shape(12, 4), dtype=dtype)
    layer.bind_kv_cache(cache)
    return layer


def step(layer: Attention, news: Sequence[int], lengths: Sequence[int], seed: int) -> torch.Tensor:
    """The newest tokens of sequences that have 3 blocks each; those with one are decoded."""
    starts = [sum(news[:at]) for at in range(len(news) + 1)]
    tables = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])[: len(news)]
    positions = [
        (row, at) for row, n in enumerate(news) for at in range(lengths[row] - n, lengths[row])
    ]
    metadata = AttentionMetadata(
        num_reqs=len(news),
        num_tokens=starts[-1],
        num_decode_reqs=list(news).count(1),
        query_start_loc=starts,
        seq_lens=list(lengths),
        block_tables=tables,
        slot_mapping=torch.tensor(
            [int(tables[row, at // 4]) * 4 + at % 4 for row, at in positions]
        ),
        block_size=4,
    )
    source = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(starts[-1], heads * 32, generator=source).to(layer.dtype) for heads in (6, 2, 2)
    )
    with torch.inference_mode(), set_forward_context(ForwardContext(metadata, {})):
        return layer(q, k, v)


STEPS = [((5, 3, 7), (5, 3, 7)), ((1, 4, 2), (6, 7, 9)), ((1, 1), (7, 8))]


def run(layer: Attention) -> list[torch.Tensor]:
    return [step(layer, news, lengths, at) for at, (news, lengths) in enumerate(STEPS)]


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("takes", [True, False])
def test_a_provider_takes_the_place_of_a_function_of_a_built_in_backend(
    takes: bool, dtype: torch.dtype, kernels: CpuKernels
) -> None:
    from hookserve.ops.compiled_attention import CompiledAttentionBackend

    backends = (CompiledAttentionBackend, PagedAttentionBackend)
    options = {"kernels": kernels if dtype is BF16 else None, "attention_backends": backends}
    name = "compiled" if dtype is BF16 else "paged"
    plain_ops = make_op_set(dtype=dtype)
    expected = run(attention(plain_ops, dtype, **options))
    assert table(plain_ops) == {
        "attention": ("torch", "hookserve", 1, 3),
        "kv_write": (name, "hookserve", 1, 3),
        "paged_attention_decode": (name, "hookserve", 1, 2),
        "paged_attention_prefill": (name, "hookserve", 1, 2),
    }
    for chosen in (ATTENTION_OPS, *([op] for op in ATTENTION_OPS)):
        provided = {op: Provides(op, takes) for op in chosen}
        ops = providing(*provided.values(), dtype=dtype)
        layer = attention(ops, dtype, **options)
        for got, wanted in zip(run(layer), expected, strict=True):
            torch.testing.assert_close(
                got, wanted, rtol=2e-2, atol=1e-5 if name == "paged" else 2e-2
            )
        counts = {"kv_write": 3, "paged_attention_decode": 2, "paged_attention_prefill": 5}
        assert {op: len(each.seen) for op, each in provided.items()} == {
            op: counts[op] for op in chosen
        }, "a prompt's tokens come alone"
        assert all(table(ops)[op][:2] == ("mine", ME) for op in chosen)


class OtherImpl(PagedAttentionImpl):
    """A backend of a plugin's that computes by ways of its own."""


class OtherBackend(PagedAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "other"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return OtherImpl


def test_the_backend_of_a_plugin_computes_itself_and_is_the_one_in_the_table() -> None:
    provided = Provides("kv_write")
    offered: tuple[type[AttentionBackend], ...] = (OtherBackend,)
    ops = providing(provided)
    ops.backends = {OtherBackend: ("theirs", "dist:hookserve:you")}
    layer = attention(ops, attention_backends=offered)
    assert type(layer.impl) is OtherImpl
    step(layer, (2,), (2,), 0)
    assert not provided.seen
    assert table(ops)["kv_write"] == ("theirs", "dist:hookserve:you", 1, 1)
    (row,) = (row for row in ops.rows() if row.op == "kv_write")
    said = "no provider is asked, since the attention backend 'other' computes that itself"
    assert row.reason.endswith(said)
    named = providing(provided, preferred={"kv_write": ["mine"]})
    with pytest.raises(ValueError, match=r"providers of kv_write \(mine\), but .*'other' computes"):
        attention(named, attention_backends=offered)
    attention(providing(preferred={"kv_write": ["torch"]}), attention_backends=offered)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_no_provider_passes_over_a_patch_of_attention(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provided = Provides("paged_attention_decode")
    ops = providing(provided)
    layer = attention(ops)
    original, calls = PagedAttentionImpl._decode, []

    def counted(self: Any, *args: Any) -> torch.Tensor:
        calls.append(1)
        return original(self, *args)

    monkeypatch.setattr(PagedAttentionImpl, "_decode", counted)
    if moment == "after":
        ops.heed_late_patches([layer])
    else:
        ops = providing(provided)
        layer = attention(ops)
    step(layer, (1,), (1,), 0)
    assert calls and not provided.seen
    (row,) = (row for row in ops.rows() if row.op == "paged_attention_decode")
    assert "no plugin's overrides PagedAttentionImpl._decode" in row.reason
    assert (row.implementation, row.owner) == ("paged", "hookserve")


@pytest.mark.parametrize("op", ["paged_attention_decode", "paged_attention_prefill"])
def test_what_is_attended_to_may_lie_in_any_order_of_memory(op: str) -> None:
    expected = run(attention(None))

    def by_head(*given: Any) -> torch.Tensor:
        answer: torch.Tensor = REFERENCES[op](*given)
        return answer.transpose(0, 1).contiguous().transpose(0, 1)

    ops = make_op_set({ME: [OpProvider(op, "mine", by_head)]})
    torch.testing.assert_close(run(attention(ops)), expected)
    assert table(ops)[op][:2] == ("mine", ME)


# -- the choice ------------------------------------------------------------------------------------


def test_an_op_is_chosen_once_in_a_process() -> None:
    made = []

    class Counted:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, *given: Any) -> Any:
            return NotImplemented

    ops = make_op_set({ME: [OpProvider("linear", "mine", Counted)]})
    layers = build(ops, lambda: [ColumnParallelLinear(4, 4) for _ in range(3)])
    assert len(made) == 1
    assert all(layer.quant_method.op.provided is made[0] for layer in layers)
    assert build(None, lambda: ColumnParallelLinear(4, 4)).quant_method.op is None


def test_one_that_the_operator_names_must_work_also_for_a_function() -> None:
    def broken(device: Any, dtype: Any) -> str:
        return "only on Mondays"

    given = {ME: [OpProvider("linear", "mine", max, supports=broken)]}
    ops = make_op_set(given)
    assert build(ops, lambda: ColumnParallelLinear(4, 4)).quant_method.op.provided is None
    (row,) = (row for row in ops.rows() if row.op == "linear")
    assert row.reason == f"nobody provides it; 'mine' of {ME}: only on Mondays"
    with pytest.raises(PluginError, match=r"no provider of linear works .*only on Mondays"):
        build(
            make_op_set(given, preferred={"linear": ["mine"]}), lambda: ColumnParallelLinear(4, 4)
        )


def test_a_provider_of_no_op_is_warned_about_with_the_nearest() -> None:
    given = {ME: [OpProvider("kv_writes", "mine", max), OpProvider("RMSNorm", "mine", max)]}
    (line,) = make_op_set(given).loose_ends()
    assert line == f"{ME} provides kv_writes, which is no op; did you mean kv_write?"
