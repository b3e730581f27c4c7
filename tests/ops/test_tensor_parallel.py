"""Layers of several ranks at once: what they compute together is what one rank computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hookserve.ops.context import TensorParallelGroup, get_tp_group, set_tp_group
from hookserve.ops.errors import PeerLostError
from hookserve.ops.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from thread_ranks import run_ranks

X = torch.linspace(-1, 1, 3 * 8, dtype=torch.float64).view(3, 8).sin()


def weight(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def load(param: Any, tensor: torch.Tensor, *shard: Any) -> None:
    param.weight_loader(param, tensor, *shard)


def test_one_rank_exchanges_nothing() -> None:
    group = get_tp_group()
    assert (group.rank, group.world_size) == (0, 1)
    assert group.all_reduce(X) is X and group.all_gather(X) is X
    assert (group.num_all_reduces, group.num_all_gathers) == (0, 0)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_feed_forward_costs_one_all_reduce(ranks: int) -> None:
    gate, up, down = weight(12, 8), weight(12, 8, seed=1), weight(8, 12, seed=2)
    bias = weight(8, seed=3)

    def work(group: TensorParallelGroup) -> tuple[torch.Tensor, int, int]:
        first = MergedColumnParallelLinear(8, [12, 12], bias=False, params_dtype=torch.float64)
        second = RowParallelLinear(12, 8, params_dtype=torch.float64)
        load(first.weight, gate, 0)
        load(first.weight, up, 1)
        load(second.weight, down)
        load(second.bias, bias)
        assert first.weight.shape == (24 // ranks, 8)
        assert second.weight.shape == (8, 12 // ranks)
        half = first(X)[0]
        left, right = half.chunk(2, dim=-1)
        return second(F.silu(left) * right)[0], group.num_all_reduces, group.num_all_gathers

    expected = (F.silu(X @ gate.T) * (X @ up.T)) @ down.T + bias
    for output, reduces, gathers in run_ranks(ranks, work):
        torch.testing.assert_close(output, expected)
        assert (reduces, gathers) == (1, 0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("ranks", "key_heads"), [(2, 4), (2, 2), (2, 1), (4, 2), (4, 1)])
def test_query_heads_come_with_their_own_key_heads(ranks: int, key_heads: int, fused: bool) -> None:
    """Key heads that are fewer than the ranks are held by several of them."""
    heads, size = 4, 2
    q, k, v = (weight(n * size, 8, seed=n) for n in (heads, key_heads, key_heads))
    bias = weight((heads + 2 * key_heads) * size, seed=9)

    def work(group: TensorParallelGroup) -> tuple[torch.Tensor, ...]:
        layer = QKVParallelLinear(8, size, heads, key_heads, params_dtype=torch.float64)
        if fused:
            load(layer.weight, torch.cat((q, k, v)))
        else:
            for name, part in zip("qkv", (q, k, v), strict=True):
                load(layer.weight, part, name)
        load(layer.bias, bias)
        assert layer.num_heads == heads // ranks
        assert layer.num_kv_heads == max(1, key_heads // ranks)
        sizes = [n * size for n in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)]
        return layer(X)[0].split(sizes, dim=-1)

    whole = (X @ torch.cat((q, k, v)).T + bias).split(
        [heads * size, key_heads * size, key_heads * size], dim=-1
    )
    for rank, parts in enumerate(run_ranks(ranks, work)):
        for head in range(heads // ranks):
            at = rank * heads // ranks + head
            own = slice(head * size, (head + 1) * size)
            torch.testing.assert_close(parts[0][:, own], whole[0][:, at * size : (at + 1) * size])
            # The key head that this query head belongs to, in the model and on this rank.
            there = at // (heads // key_heads)
            here = head // ((heads // ranks) // max(1, key_heads // ranks))
            for part, all_heads in zip(parts[1:], whole[1:], strict=True):
                torch.testing.assert_close(
                    part[:, here * size : (here + 1) * size],
                    all_heads[:, there * size : (there + 1) * size],
                )


def test_a_gathered_column_and_an_input_that_is_whole() -> None:
    w, bias = weight(6, 8), weight(6, seed=1)
    row = weight(5, 6, seed=2)

    def work(group: TensorParallelGroup) -> torch.Tensor:
        column = ColumnParallelLinear(8, 6, gather_output=True, params_dtype=torch.float64)
        load(column.weight, w)
        load(column.bias, bias)
        after = RowParallelLinear(
            6, 5, bias=False, input_is_parallel=False, params_dtype=torch.float64
        )
        load(after.weight, row)
        return after(column(X)[0])[0]

    for output in run_ranks(2, work):
        torch.testing.assert_close(output, (X @ w.T + bias) @ row.T)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_words_are_looked_up_and_scored_by_parts(ranks: int, tied: bool) -> None:
    """A vocabulary that the ranks cannot share evenly, with padding on the last one."""
    vocab, hidden = 10, 8
    table, head = weight(vocab, hidden), weight(vocab, hidden, seed=1)
    ids = torch.tensor([0, 9, 4, 5, 9])

    def work(group: TensorParallelGroup) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        embedding = VocabParallelEmbedding(vocab, hidden, torch.float64, padding_size=4)
        lm_head: Any = ParallelLMHead(vocab, hidden, params_dtype=torch.float64, padding_size=4)
        load(embedding.weight, table)
        if tied:
            lm_head = lm_head.tie_weights(embedding)
        else:
            load(lm_head.weight, head)
        assert embedding.num_embeddings_per_partition == 12 // ranks
        looked_up = embedding(ids)
        scores = LogitsProcessor(vocab)(lm_head, X)
        return looked_up, scores, group.num_all_reduces, group.num_all_gathers

    for looked_up, scores, reduces, gathers in run_ranks(ranks, work):
        assert torch.equal(looked_up, table[ids])
        torch.testing.assert_close(scores, X @ (table if tied else head).T)
        assert (reduces, gathers) == (1, 1)


def test_a_rank_scores_its_own_words_alone_where_nothing_is_gathered() -> None:
    head = weight(10, 8)

    def work(group: TensorParallelGroup) -> tuple[torch.Tensor, int]:
        lm_head: Any = ParallelLMHead(10, 8, params_dtype=torch.float64, padding_size=4)
        load(lm_head.weight, head)
        return LogitsProcessor(10)(lm_head, X, skip_gather=True), group.num_all_gathers

    (first, gathers), (second, _) = run_ranks(2, work)
    padded = torch.cat((X @ head.T, torch.zeros(X.shape[0], 2, dtype=X.dtype)), 1)
    torch.testing.assert_close(torch.cat((first, second), 1), padded)
    assert gathers == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ColumnParallelLinear(8, 7, prefix="up"), "up: 7 .* over 2 ranks"),
        (lambda: RowParallelLinear(7, 8, prefix="down"), "down: 7 inputs .* over 2 ranks"),
        (lambda: QKVParallelLinear(8, 2, 3, prefix="qkv"), "qkv: 3 attention heads .* 2 ranks"),
        (lambda: QKVParallelLinear(8, 2, 6, 3, prefix="qkv"), "qkv: 3 key heads .* 2 ranks"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_name(make: Any, words: str) -> None:
    with set_tp_group(TensorParallelGroup(1, 2)), pytest.raises(ValueError, match=words):
        make()


def test_a_weight_of_another_size_is_not_cut_to_fit() -> None:
    """Half of 9 rows would be as many as half of 8."""
    with set_tp_group(TensorParallelGroup(0, 2)):
        column = ColumnParallelLinear(8, 8)
        row = RowParallelLinear(8, 8)
    with pytest.raises(ValueError, match="9 rows"):
        load(column.weight, torch.zeros(9, 8))
    with pytest.raises(ValueError, match="9 columns"):
        load(row.weight, torch.zeros(8, 9))


def test_a_rank_that_lost_the_others_says_which_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    monkeypatch.setattr(torch.distributed, "all_gather", fail)
    group = TensorParallelGroup(1, 2)
    for exchange in (group.all_reduce, group.all_gather):
        with pytest.raises(PeerLostError, match="rank 1 cannot reach the others: Connection"):
            exchange(torch.zeros(2))


def test_what_does_not_lie_in_one_piece_is_summed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.distributed`` takes no other."""

    def double(x: torch.Tensor, group: Any) -> None:
        assert x.is_contiguous()
        x *= 2

    monkeypatch.setattr(torch.distributed, "all_reduce", double)
    assert torch.equal(TensorParallelGroup(0, 2).all_reduce(X.t()), 2 * X.t())


def test_a_communicator_that_fails_is_named() -> None:
    class Narrow:
        def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("more than 4 kB")

        def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
            raise RuntimeError("more than 4 kB")

    group = TensorParallelGroup(1, 2, communicator=Narrow())  # type: ignore[arg-type]
    for exchange in (group.all_reduce, group.all_gather):
        with pytest.raises(PeerLostError, match=r"^rank 1 .* by \S*Narrow: more than 4 kB$"):
            exchange(X)
