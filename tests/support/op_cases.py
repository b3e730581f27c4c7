"""Random arguments for every op that can be provided, and the comparison with its definition.

``CASES`` has for each op a function that draws the arguments of one call, of the kind of tensors
that is asked for, from this space: up to 70 rows; widths that are multiples of 16, 24 and of
nothing; heads of 16 to 128 numbers in groups of 1 to 4; caches of blocks of 1, 4 and 16 tokens,
sequences of 1 to 40 tokens, and now and then of 300, in any order of blocks, with and without a
window or capped scores; values from 0.001 to 50; vocabularies of up to 300, of which some logits
are equal and some are impossible. Rows of what may be strided sometimes are.

``check`` makes one call and compares it; it is for tests in any process that has the provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st

from hookserve.ops.op_references import GREEDY_TEMPERATURE, REFERENCES, sampling_weights

Arguments = tuple[Any, ...]

_TOLERANCES = {
    torch.float32: (2e-5, 1e-5),
    torch.float16: (2**-9, 2e-3),
    torch.bfloat16: (2**-6, 1e-2),
}
"""Relative, and absolute for numbers up to 1; twice that for sums of larger ones."""


class Source:
    """Draws numbers by hypothesis and tensors by a seed that it has drawn."""

    def __init__(self, data: st.DataObject, dtype: torch.dtype, device: torch.device) -> None:
        self.data, self.dtype, self.device = data, dtype, device
        self.generator = torch.Generator().manual_seed(self.of(st.integers(0, 999)))

    def of(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def one_of(self, *values: Any) -> Any:
        return self.of(st.sampled_from(values))

    def tensor(self, *shape: int, scale: float = 1.0, is_strided: bool = False) -> torch.Tensor:
        """Normal numbers; strided: a part of longer rows of the second last dimension."""
        numbers = torch.randn(*shape, generator=self.generator) * scale
        made = numbers.to(self.device, self.dtype)
        if not is_strided:
            return made
        longer = made.new_full((shape[0], 2, *shape[1:]), 7.0)
        longer[:, 0] = made
        return longer[:, 0]

    def whole(self, low: int, high: int, *shape: int) -> torch.Tensor:
        numbers = torch.randint(low, high, shape, generator=self.generator)
        return numbers.to(self.device)

    def to_device(self, values: list[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


# -- arguments -------------------------------------------------------------------------------------


def _norm(source: Source) -> Arguments:
    rows, width = source.of(st.integers(1, 70)), source.one_of(16, 24, 33, 48, 64, 96, 576)
    scale = source.one_of(1e-3, 1.0, 50.0)
    x = source.tensor(rows, width, scale=scale)
    residual = source.tensor(rows, width, scale=scale) if source.of(st.booleans()) else None
    return x, residual, source.tensor(width), source.one_of(1e-6, 1e-5)


def _gated(source: Source) -> Arguments:
    rows, width = source.of(st.integers(1, 70)), source.one_of(2, 30, 32, 64, 96, 192)
    return (source.tensor(rows, width, scale=source.one_of(1e-3, 1.0, 50.0)),)


def _gelu(source: Source) -> Arguments:
    return *_gated(source), source.one_of("none", "tanh")


def _rotary(source: Source, part: float = 1.0) -> Arguments:
    tokens, heads = source.of(st.integers(1, 40)), source.of(st.integers(1, 5))
    size = source.one_of(16, 32, 64, 80, 128)
    x = source.tensor(tokens, heads * size, is_strided=source.of(st.booleans()))
    pairs = int(size * part) // 2
    positions = source.whole(0, 5000, tokens)[:, None].float()
    angles = positions * 10000.0 ** -(torch.arange(pairs, device=source.device) / pairs)
    cos, sin = angles.cos(), angles.sin()
    return (
        x,
        torch.cat((cos, cos), -1)[:, None].to(source.dtype),
        torch.cat((-sin, sin), -1)[:, None].to(source.dtype),
        size,
    )


def _embedding(source: Source) -> Arguments:
    rows, hidden = source.of(st.integers(1, 70)), source.one_of(16, 33, 64)
    ids = source.whole(0, rows, source.of(st.integers(1, 40)))
    return ids, source.tensor(rows, hidden)


def _linear(source: Source) -> Arguments:
    rows, inputs = source.of(st.integers(1, 40)), source.one_of(16, 33, 64, 96)
    outputs = source.one_of(16, 24, 48, 129)
    x = source.tensor(rows, inputs, is_strided=source.of(st.booleans()))
    bias = source.tensor(outputs) if source.of(st.booleans()) else None
    return x, source.tensor(outputs, inputs, scale=inputs**-0.5), bias


def _kv_write(source: Source) -> Arguments:
    kv_heads, size = source.of(st.integers(1, 3)), source.one_of(16, 32, 64, 80, 128)
    blocks, block_size = source.of(st.integers(1, 6)), source.one_of(1, 4, 16)
    tokens = source.of(st.integers(1, blocks * block_size))
    slots = torch.randperm(blocks * block_size, generator=source.generator)[:tokens]
    is_strided = source.of(st.booleans())
    key, value = (source.tensor(tokens, kv_heads, size, is_strided=is_strided) for _ in "kv")
    cache = source.tensor(blocks, 2, kv_heads, block_size, size)
    return cache, key, value, slots.to(source.device)


def _attention(source: Source, lengths: list[int], news: list[int]) -> tuple[Arguments, Arguments]:
    """Query, cache, tables and lengths; scale, window and cap."""
    kv_heads, group = source.of(st.integers(1, 3)), source.of(st.integers(1, 4))
    size, block_size = source.one_of(16, 32, 64, 80, 128), source.one_of(1, 4, 16)
    counts = [-(-length // block_size) for length in lengths]
    order = (torch.randperm(sum(counts) + 2, generator=source.generator) + 1).tolist()
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.int64)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    heads = kv_heads * group
    query = source.tensor(sum(news), heads, size, is_strided=source.of(st.booleans()))
    cache = source.tensor(sum(counts) + 3, 2, kv_heads, block_size, size)
    window = source.one_of(None, None, 1, 7, 50)
    seen = (
        query,
        cache,
        tables.to(source.device),
        source.to_device(lengths, torch.int64),
    )
    return seen, (size**-0.5, window, source.one_of(None, None, 5.0, 30.0))


def _lengths(source: Source) -> list[int]:
    length = st.one_of(st.integers(1, 40), st.sampled_from([16, 256, 257, 300]))
    found: list[int] = source.of(st.lists(length, min_size=1, max_size=4))
    return found


def _decode(source: Source) -> Arguments:
    lengths = _lengths(source)
    seen, how = _attention(source, lengths, [1] * len(lengths))
    return *seen, *how


def _prefill(source: Source) -> Arguments:
    lengths = _lengths(source)
    news = [source.one_of(length, source.of(st.integers(1, length))) for length in lengths]
    seen, how = _attention(source, lengths, news)
    starts = [sum(news[:at]) for at in range(len(news) + 1)]
    return *seen, source.to_device(starts, torch.int64), *how


def _sampling(source: Source) -> Arguments:
    rows, vocab = source.of(st.integers(1, 6)), source.of(st.integers(1, 300))
    made = torch.randn(rows, vocab, generator=source.generator) * source.one_of(0.1, 3.0)
    if source.of(st.booleans()):  # equal ones
        made = made.round()
    impossible = torch.rand(rows, vocab, generator=source.generator) < source.one_of(0.0, 0.5)
    impossible[:, vocab // 2] = False

    def each(*values: Any, dtype: torch.dtype) -> torch.Tensor:
        return source.to_device([source.one_of(*values) for _ in range(rows)], dtype)

    return (
        made.masked_fill(impossible, float("-inf")).to(source.device),
        each(0.0, 0.3, 1.0, 2.5, dtype=torch.float32),
        each(0, 1, 5, 400, dtype=torch.int64),
        each(0.05, 0.5, 0.95, 1.0, dtype=torch.float64),
        each(0.0, 0.1, 0.9, dtype=torch.float64),
        torch.rand(rows, dtype=torch.float64, generator=source.generator).to(source.device),
    )


CASES: Mapping[str, Callable[[Source], Arguments]] = {
    "rms_norm": _norm,
    "gemma_rms_norm": _norm,
    "silu_and_mul": _gated,
    "gelu_and_mul": _gelu,
    "rotary_embedding": _rotary,
    "partial_rotary_embedding": lambda source: _rotary(source, 0.5),
    "embedding": _embedding,
    "linear": _linear,
    "kv_write": _kv_write,
    "paged_attention_decode": _decode,
    "paged_attention_prefill": _prefill,
    "logits": _linear,
    "sampling": _sampling,
}


# -- the comparison --------------------------------------------------------------------------------


def check(
    op: str,
    provided: Callable[..., Any],
    data: st.DataObject,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> bool:
    """Draw the arguments of one call, and compare what a provider makes of them with what the op's
    definition does.

    Args:
        data: of ``st.data()``.

    Returns: whether the provider took them.
    """
    arguments = CASES[op](Source(data, dtype, device or torch.device("cpu")))
    given, kept = _copies(arguments), _copies(arguments)
    got = provided(*given)
    if got is NotImplemented:
        _assert_same(given, arguments)
        return False
    expected = REFERENCES[op](*kept)
    if op == "kv_write":
        _assert_same(given, kept)
    elif op == "sampling":
        _assert_same(given, arguments)
        _assert_sampled(got, arguments)
    else:
        _assert_same(given, arguments)
        _assert_near(got, expected)
    return True


def _copies(arguments: Arguments) -> Arguments:
    """The same numbers in the same places, in memory of their own."""
    return tuple(_copy(each) if isinstance(each, torch.Tensor) else each for each in arguments)


def _copy(given: torch.Tensor) -> torch.Tensor:
    whole = given if given._base is None else given._base
    return whole.clone().as_strided(given.shape, given.stride(), given.storage_offset())


def _assert_same(given: Arguments, kept: Arguments) -> None:
    for one, other in zip(given, kept, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other), "a provider changes nothing that it is not to change"


def _assert_near(got: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert isinstance(got, tuple) and len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            _assert_near(one, other)
        return
    if expected is None:
        assert got is None
        return
    assert got.is_contiguous(), "layers take views of it"
    rtol, atol = _TOLERANCES[expected.dtype]
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol * min(2.0, scale))


def _assert_sampled(got: torch.Tensor, arguments: Arguments) -> None:
    """Each token is the definition's, or one that sums of other roundings may take."""
    logits, temperature, top_k, top_p, min_p, draws = arguments
    assert got.shape == (len(logits),) and got.dtype is torch.int64
    for row, token in enumerate(got.tolist()):
        if temperature[row] < GREEDY_TEMPERATURE:
            assert token == int(logits[row].argmax())
            continue
        limits = float(temperature[row]), int(top_k[row]), float(top_p[row]), float(min_p[row])
        assert any(
            _may_be_drawn(token, float(draws[row]), logits[row], limits, nudge)
            for nudge in (0.0, 1e-6, -1e-6)
        )


def _may_be_drawn(
    token: int,
    draw: float,
    logits: torch.Tensor,
    limits: tuple[float, int, float, float],
    nudge: float,
) -> bool:
    """Args:
    nudge: what the part of top-p may be off by.
    """
    temperature, top_k, top_p, min_p = limits
    weights = sampling_weights(logits, temperature, top_k, min(1.0, top_p + nudge), min_p)
    weights /= weights.sum()
    end = float(weights[: token + 1].sum())
    begin = end - float(weights[token])
    return bool(weights[token] > 0.0) and begin - 1e-5 <= draw <= end + 1e-5
