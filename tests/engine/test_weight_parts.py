"""Weights of a GGUF file by parts: the same values, and no more converted than is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from hookserve.engine import weight_parts
from hookserve.engine.gguf_quant import dequantize
from hookserve.engine.weight_iterators import iterate_gguf
from hookserve.engine.weight_parts import Rectangle, WeightPart
from hookserve.ops.context import TensorParallelGroup, set_tp_group
from hookserve.ops.linear import QKVParallelLinear, RowParallelLinear
from hookserve.ops.vocab_parallel_embedding import VocabParallelEmbedding
from tiny_gguf import TinyGGUF, write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyGGUF:
    """Interleaved heads, and a type for each way that a block can lie."""
    types = {"attn_q.weight": "Q4_0", "ffn_down.weight": "F16", "ffn_up.weight": "Q4_1"}
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", types=types)


@pytest.fixture(scope="module")
def whole(tiny: TinyGGUF) -> dict[str, torch.Tensor]:
    return dict(iterate_gguf(str(tiny.path)))


@pytest.fixture(scope="module")
def parts(tiny: TinyGGUF) -> dict[str, torch.Tensor]:
    return dict(iterate_gguf(str(tiny.path), in_parts=True))


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of each conversion."""
    sizes: list[int] = []

    def counted(*args: Any) -> torch.Tensor:
        result = dequantize(*args)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(weight_parts, "dequantize", counted)
    return sizes


def test_matrices_come_in_parts_and_vectors_as_they_are(
    whole: dict[str, torch.Tensor], parts: dict[str, torch.Tensor]
) -> None:
    assert parts.keys() == whole.keys()
    for name, part in parts.items():
        assert isinstance(part, WeightPart) == (part.dim() == 2)
        assert (part.shape, part.dtype) == (whole[name].shape, whole[name].dtype)
        assert torch.equal(torch.empty(part.shape).copy_(part), whole[name]), name


CUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t[3 : len(t) // 2],
    lambda t: t[len(t) // 2 :, 5 : t.shape[1] - 7],
    lambda t: t[-2:][:, :33],
    lambda t: t[len(t) :],
    lambda t: t[::3],
    lambda t: t.narrow(1, 32, 32).narrow(0, 1, 4),
    lambda t: torch.split(t, [1, len(t) - 1])[1],
    lambda t: torch.split(t, len(t) // 2)[-1],
    lambda t: t.chunk(2, dim=-1)[1].detach(),
    lambda t: t[1],
    lambda t: t.t() + 1,
)


def test_any_way_to_cut_gives_what_it_gives_of_the_whole(
    whole: dict[str, torch.Tensor], parts: dict[str, torch.Tensor]
) -> None:
    for name, part in parts.items():
        for cut in CUTS if part.dim() == 2 else ():
            expected = cut(whole[name])
            assert torch.equal(torch.zeros(expected.shape).copy_(cut(part)), expected), name


def test_a_rank_converts_its_own_part_alone(
    whole: dict[str, torch.Tensor], parts: dict[str, torch.Tensor], converted: list[int]
) -> None:
    at = "model.layers.0."
    q, down = f"{at}self_attn.q_proj.weight", f"{at}mlp.down_proj.weight"
    embed = "model.embed_tokens.weight"
    hidden = whole[q].shape[1]
    with set_tp_group(TensorParallelGroup(1, 2)):
        qkv = QKVParallelLinear(hidden, whole[q].shape[0] // 4, 4, bias=False)
        row = RowParallelLinear(whole[down].shape[1], hidden, bias=False)
        table = VocabParallelEmbedding(*whole[embed].shape)
    for param, name, shard in (
        (qkv.weight, q, ["q"]),
        (row.weight, down, []),
        (table.weight, embed, []),
    ):
        converted.clear()
        param.weight_loader(param, parts[name], *shard)
        assert sum(converted) <= whole[name].numel() // 2 + 64 * hidden, name
        assert len(converted) == 1
    half = whole[q].shape[0] // 2
    assert torch.equal(qkv.weight[:half], whole[q][half:])
    assert torch.equal(row.weight, whole[down].chunk(2, dim=1)[1])
    start = table.num_embeddings_per_partition
    rest = whole[embed][start:]
    assert torch.equal(table.weight[: len(rest)], rest)


def test_columns_within_a_block_cost_no_more_than_the_block(converted: list[int]) -> None:
    raw = numpy.arange(2 * 3 * 34, dtype=numpy.uint8).reshape(2, 102)
    part = WeightPart(Rectangle(raw, "Q8_0", torch.float32, None, (0, 2), (0, 96)))
    plain = dequantize(raw.reshape(-1), "Q8_0", (2, 96))
    taken = torch.empty(1, 10).copy_(part[1:, 40:50])
    assert torch.equal(taken, plain[1:, 40:50])
    assert converted == [32]


def test_it_says_what_it_is(parts: dict[str, torch.Tensor]) -> None:
    assert repr(parts["model.layers.0.self_attn.q_proj.weight"]).startswith("WeightPart((")
