"""Attention of prompts by the kernel against float64, with and without the processor's products."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from hookserve.ops import c_compiler
from hookserve.ops.context import AttentionMetadata
from hookserve.ops.cpu_kernels import MORE_SOURCES, CpuKernels

BF16 = torch.bfloat16
MARGIN = 3
# Rows before and behind the results.


class Prompt(NamedTuple):
    """``tokens`` new ones behind ``cached`` ones."""

    cached: int
    tokens: int
    heads: int = 2
    group: int = 3
    size: int = 64
    block: int = 16
    window: int | None = None
    cap: float | None = None
    loud: float = 1.0
    """What queries are multiplied by."""


@pytest.fixture(scope="session", params=["as the machine has it", "by plain C"])
def any_kernels(
    request: pytest.FixtureRequest, kernels: CpuKernels, tmp_path_factory: pytest.TempPathFactory
) -> CpuKernels:
    if request.param == "as the machine has it":
        return kernels
    source = next(path for path in MORE_SOURCES if path.name == "cpu_prefill.c")
    with pytest.MonkeyPatch.context() as patch:
        undefined = ("-U__AVX512F__", "-U__AVX512BF16__")
        patch.setattr(c_compiler, "FLAGS", (*c_compiler.FLAGS, *undefined))
        library = c_compiler.load_library(source, tmp_path_factory.mktemp("plain"))
    library.attend_prefill.restype = None
    plain = CpuKernels.__new__(CpuKernels)
    plain._library = SimpleNamespace(attend_prefill=library.attend_prefill)  # type: ignore[assignment]
    return plain


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def make_step(prompt: Prompt, keys: torch.Tensor) -> tuple[torch.Tensor, AttentionMetadata]:
    """A cache that is not a number anywhere but where ``keys: [2, heads, length, size]`` are, in
    blocks in disorder; the prompt is the second of the step's two requests."""
    length, block = prompt.cached + prompt.tokens, prompt.block
    count = -(-length // block)
    table = torch.randperm(count + 2, generator=torch.Generator().manual_seed(1))[:count]
    cache = torch.full((count + 2, 2, prompt.heads, block, prompt.size), float("nan"), dtype=BF16)
    for at in range(length):
        cache[table[at // block], :, :, at % block] = keys[:, :, at]
    tables = torch.zeros(2, count + 1, dtype=torch.int64)
    tables[1, :count] = table
    starts = [0, 1, 1 + prompt.tokens]
    slots = torch.zeros(starts[-1], dtype=torch.int64)
    return cache, AttentionMetadata(2, starts[-1], 1, starts, [1, length], tables, slots, block)


def expected_of(prompt: Prompt, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """By the definition, in float64."""
    length = prompt.cached + prompt.tokens
    scores = torch.einsum("nhgs,hls->hgnl", query.double(), keys[0].double()) * 0.125
    if prompt.cap is not None:
        scores = prompt.cap * torch.tanh(scores / prompt.cap)
    own = torch.arange(prompt.cached, length)[:, None]
    at = torch.arange(length)
    hidden = (at > own) | (at <= own - (prompt.window or length))
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
    return torch.einsum("hgnl,hls->nhgs", weights, keys[1].double())


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(0, 1),
        Prompt(0, 1, group=1, size=32),
        Prompt(0, 11),
        Prompt(0, 64, group=1),
        Prompt(0, 65, heads=1, group=1),
        Prompt(0, 150, heads=3),
        Prompt(63, 2),
        Prompt(64, 40, group=8),
        Prompt(200, 33, heads=1, group=17, size=32),
        Prompt(37, 20, size=128, block=4),
        Prompt(5, 90, group=2, size=96, block=5),
        Prompt(0, 70, heads=1, size=256),
        Prompt(0, 150, window=1),
        Prompt(0, 150, window=64),
        Prompt(100, 90, window=37, group=1),
        Prompt(300, 30, window=65, cap=3.0),
        Prompt(10, 90, window=1000),
        Prompt(20, 80, cap=2.0, loud=4.0),
        Prompt(20, 80, loud=1000.0),
    ],
    ids=str,
)
def test_prompts_are_attended_to_as_in_float64(any_kernels: CpuKernels, prompt: Prompt) -> None:
    _, tokens, heads, group, size = prompt[:5]
    keys = draw(2, heads, prompt.cached + tokens, size, seed=2)
    merged = draw(tokens, heads * group * size + 24, seed=3) * prompt.loud
    query = merged[:, 8 : 8 + heads * group * size].view(tokens, heads, group, size)
    cache, metadata = make_step(prompt, keys)
    whole = torch.full((tokens + 2 * MARGIN, heads, group, size), float("nan"), dtype=BF16)
    got = whole[MARGIN:-MARGIN]
    any_kernels.attend_prefill(
        query, cache, metadata, 1, got, 0.125, window=prompt.window, soft_cap=prompt.cap
    )
    # Weights are rounded to bfloat16, and so is the result: half a unit in the last place each, of
    # the largest value and of the result.
    expected = expected_of(prompt, query, keys)
    torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=2**-9 * 4)
    assert (got.double() - expected).abs().mean() < 2**-10
    assert whole[:MARGIN].isnan().all()
    assert whole[-MARGIN:].isnan().all()


def test_a_prompt_in_chunks_is_the_prompt(kernels: CpuKernels) -> None:
    """Also over a border of a tile of keys and of a block."""
    whole = Prompt(0, 131)
    keys, query = draw(2, 2, 131, 64, seed=2), draw(131, 2, 3, 64, seed=3)
    results = []
    for ends in ([131], [64, 65, 131]):
        parts, cached = [], 0
        for end in ends:
            chunk = whole._replace(cached=cached, tokens=end - cached)
            cache, metadata = make_step(chunk, keys[:, :, :end])
            parts.append(torch.empty(end - cached, 2, 3, 64, dtype=BF16))
            kernels.attend_prefill(query[cached:end], cache, metadata, 1, parts[-1], 0.125)
            cached = end
        results.append(torch.cat(parts))
    torch.testing.assert_close(*results, rtol=2**-7, atol=0)


def test_what_is_not_a_number_stays_with_its_token(any_kernels: CpuKernels) -> None:
    prompt = Prompt(4, 40)
    keys, query = draw(2, 2, 44, 64, seed=2), draw(40, 2, 3, 64, seed=3)
    query[7, 1, 2, 5] = float("nan")
    cache, metadata = make_step(prompt, keys)
    got = torch.empty_like(query)
    any_kernels.attend_prefill(query, cache, metadata, 1, got, 0.125)
    wrong = got.isnan().any(-1)
    assert wrong.nonzero().tolist() == [[7, 1, 2]]


def test_queries_of_another_kind_are_refused(kernels: CpuKernels) -> None:
    prompt = Prompt(4, 9)
    cache, metadata = make_step(prompt, draw(2, 2, 13, 64, seed=2))
    query = draw(9, 2, 3, 64, seed=3)
    for wrong in (query[:8], query.float()):
        with pytest.raises(ValueError, match=r"attention got queries .* and 9 tokens"):
            kernels.attend_prefill(wrong, cache, metadata, 1, torch.empty_like(query), 0.125)


def test_queries_and_tables_lie_in_any_order_of_memory(kernels: CpuKernels) -> None:
    prompt = Prompt(4, 9)
    cache, metadata = make_step(prompt, draw(2, 2, 13, 64, seed=2))
    query = draw(9, 2, 3, 64, seed=3)
    apart = query.transpose(1, 3).contiguous().transpose(1, 3)
    results = [torch.empty_like(query, memory_format=torch.contiguous_format) for _ in "ab"]
    for given, got in zip((query, apart), results, strict=True):
        kernels.attend_prefill(given, cache, metadata, 1, got, 0.125)
        # The second time with a table of another type, and not in one piece.
        metadata.block_tables = metadata.block_tables.to(torch.int32).t().contiguous().t()
    assert torch.equal(*results)
