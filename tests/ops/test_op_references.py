"""Every provider of every op, every built-in attention backend, and the layers' own functions,
against the op's definition, on random arguments. Providers are found, not listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hookserve.engine.sampler import Sampler, SamplingMetadata
from hookserve.hookspecs import PluginSettings, bootstrap
from hookserve.hookspecs.host import Host
from hookserve.hookspecs.op_names import FUNCTION_OPS, registered_of
from hookserve.ops.activation import GeluAndMul, SiluAndMul
from hookserve.ops.attention_backend import AttentionBackend
from hookserve.ops.context import AttentionMetadata, set_model_context
from hookserve.ops.cpu_kernels import CpuKernels
from hookserve.ops.custom_op import find_op
from hookserve.ops.dispatch import OpSet
from hookserve.ops.layernorm import GemmaRMSNorm, RMSNorm
from hookserve.ops.linear import UnquantizedLinearMethod
from hookserve.ops.op_references import REFERENCES
from hookserve.ops.rotary_embedding import PartialRotaryEmbedding, RotaryEmbedding
from hookserve.ops.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from op_cases import CASES, check

DTYPES = (torch.float32, torch.bfloat16)
ATTENTION = ("paged_attention_decode", "paged_attention_prefill")
often = settings(max_examples=20, deadline=None, derandomize=True, database=None)
now_and_then = settings(often, max_examples=2)
"""For kernels that are interpreted here, a thousand times slower than they are."""


def how_often(name: str) -> settings:
    """For the provider or backend of this name."""
    return now_and_then if name == "triton" else often


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Of the built-in plugins alone."""
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()


def building(
    kernels: CpuKernels | None, dtype: torch.dtype, ops: OpSet | None = None
) -> AbstractContextManager[Any]:
    return set_model_context(
        static_forward_context={}, dtype=dtype, block_size=4, kernels=kernels, ops=ops
    )


def test_every_op_that_can_be_provided_is_defined_and_drawn() -> None:
    assert REFERENCES.keys() == CASES.keys()
    assert all(op in FUNCTION_OPS or find_op(op) is not None for op in REFERENCES)
    assert set(FUNCTION_OPS) <= REFERENCES.keys()


# -- providers -------------------------------------------------------------------------------------


def providers(host: Host, kernels: CpuKernels, dtype: torch.dtype) -> dict[tuple[str, str], Any]:
    """Those that support this kind of tensors on a CPU, by op and name; what others say of it."""
    found: dict[tuple[str, str], Any] = {}
    for claim in host.registry("op_provider").claims():
        op, name = registered_of(claim.declaration.op), claim.declaration.name
        ops = OpSet(
            host.registry("oot_op"),
            host.registry("op_provider"),
            preferred={op: [name]},
            dtype=dtype,
        )
        with building(kernels if dtype is torch.bfloat16 else None, dtype, ops):
            said: list[str] = []
            provided = ops._try(claim, said, must_work=False)
        found[op, name] = said[0] if provided is None else provided
    return found


def test_every_provider_computes_what_the_definition_says(host: Host, kernels: CpuKernels) -> None:
    compared: dict[str, set[str]] = {}
    for dtype in DTYPES:
        for (op, name), provided in providers(host, kernels, dtype).items():
            if isinstance(provided, str):
                continue
            taken = compare(op, provided, dtype, how_often(name))
            assert any(taken), f"{name} took nothing of {op} in {dtype}"
            compared.setdefault(name, set()).add(op)
    compiled = {"rms_norm", "silu_and_mul", "rotary_embedding"}
    others = {"gemma_rms_norm", "gelu_and_mul", "partial_rotary_embedding", "kv_write"}
    assert compared["c"] >= compiled and compared["triton"] >= compiled | others


def compare(
    op: str, provided: Callable[..., Any], dtype: torch.dtype, examples: settings = often
) -> list[bool]:
    """Of each call whether it was taken."""
    taken: list[bool] = []

    @examples
    @given(data=st.data())
    def once(data: Any) -> None:
        taken.append(check(op, provided, data, dtype))

    once()
    return taken


# -- the layers' own functions ---------------------------------------------------------------------


def own_norm(kind: type[RMSNorm]) -> Callable[..., Any]:
    def call(x: Any, residual: Any, weight: Any, eps: float) -> Any:
        norm = kind(x.shape[-1], eps, dtype=x.dtype)
        norm.weight.data = weight
        answer = norm.forward_native(x, residual)
        return (answer, None) if residual is None else answer

    return call


def own_rotation(kind: type[RotaryEmbedding]) -> Callable[..., Any]:
    def call(x: Any, cos: Any, sin: Any, head_size: int) -> Any:
        rope = kind(head_size, cos.shape[-1], 8, 10000.0, True, x.dtype)
        return rope._rotate(x, cos, sin)

    return call


def layer_of(weight: torch.Tensor) -> nn.Module:
    layer = nn.Module()
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


class Drawn(SamplingMetadata):
    """Of which the random numbers are known."""

    numbers: list[float]

    def draw(self, row: int) -> float:
        return self.numbers[row]


def own_sampling(logits: Any, temperature: Any, top_k: Any, top_p: Any, *rest: Any) -> Any:
    min_p, draws = rest
    metadata = Drawn(
        temperature.tolist(),
        top_p.tolist(),
        top_k.tolist(),
        min_p.tolist(),
        generators=[],
        all_greedy=False,
        edits={},
        num_logprobs={},
    )
    metadata.numbers = draws.tolist()
    return Sampler().forward(logits, metadata).sampled_token_ids[:, 0]


OWN: dict[str, Callable[..., Any]] = {
    "rms_norm": own_norm(RMSNorm),
    "gemma_rms_norm": own_norm(GemmaRMSNorm),
    "silu_and_mul": lambda x: SiluAndMul().forward_native(x),
    "gelu_and_mul": lambda x, approximate: GeluAndMul(approximate).forward_native(x),
    "rotary_embedding": own_rotation(RotaryEmbedding),
    "partial_rotary_embedding": own_rotation(PartialRotaryEmbedding),
    "embedding": lambda ids, weight: UnquantizedEmbeddingMethod().embedding(layer_of(weight), ids),
    "linear": lambda x, weight, bias: UnquantizedLinearMethod().apply(layer_of(weight), x, bias),
    "logits": lambda x, weight, bias: UnquantizedEmbeddingMethod().apply(layer_of(weight), x, bias),
    "sampling": own_sampling,
}
"""Attention is its backends'."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OWN)
def test_a_layers_own_function_computes_what_the_definition_says(
    op: str, dtype: torch.dtype
) -> None:
    assert all(compare(op, OWN[op], dtype))


# -- attention backends ----------------------------------------------------------------------------


class ByBackend:
    """The ops of attention by a backend's own class, as a layer calls it. What is newest is in the
    cache already; it is written there once more."""

    def __init__(self, backend: type[AttentionBackend], kernels: CpuKernels | None) -> None:
        self.backend, self.kernels = backend, kernels

    def decode(
        self, query: Any, cache: Any, tables: Any, lengths: Any, scale: float, *how: Any
    ) -> Any:
        starts = torch.arange(len(lengths) + 1)
        return self.call(len(lengths), query, cache, tables, lengths, starts, scale, *how)

    def prefill(
        self,
        query: Any,
        cache: Any,
        tables: Any,
        lengths: Any,
        starts: Any,
        scale: float,
        *how: Any,
    ) -> Any:
        return self.call(0, query, cache, tables, lengths, starts, scale, *how)

    def call(
        self,
        num_decodes: int,
        query: torch.Tensor,
        cache: torch.Tensor,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
        window: int | None,
        cap: float | None,
    ) -> Any:
        _, heads, size = query.shape
        kv_heads, block = cache.shape[2:4]
        if self.backend.validate_configuration(size, query.dtype, block, window, cap):
            return NotImplemented
        impl = self.backend.get_impl_cls()(
            heads, size, scale, kv_heads, None, window, "auto", cap, "decoder", None
        )
        impl.bind_kv_cache(cache)
        slots = torch.tensor(
            [
                int(tables[row, at // block]) * block + at % block
                for row, length in enumerate(lengths.tolist())
                for at in range(length - int(starts[row + 1] - starts[row]), length)
            ]
        )
        keys, values = (cache[slots // block, part, :, slots % block] for part in (0, 1))
        metadata = AttentionMetadata(
            num_reqs=len(lengths),
            num_tokens=len(query),
            num_decode_reqs=num_decodes,
            query_start_loc=starts.tolist(),
            seq_lens=lengths.tolist(),
            block_tables=tables,
            slot_mapping=slots,
            block_size=block,
        )
        output = query.new_empty(query.shape) if impl.writes_output else None
        got = impl.forward(nn.Module(), query, keys, values, cache, metadata, output)
        return got.view(query.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ATTENTION)
def test_every_attention_backend_computes_what_the_definitions_say(
    op: str, dtype: torch.dtype, host: Host, kernels: CpuKernels
) -> None:
    registry = host.registry("attention_backend")
    compared = set()
    for name in registry.names():
        if name == "triton" and dtype is not torch.float32:
            continue  # interpreted alike in all types
        with building(kernels if dtype is torch.bfloat16 else None, dtype):
            by_backend = ByBackend(registry.resolve(name), kernels)
            call = by_backend.decode if op == ATTENTION[0] else by_backend.prefill
            if any(compare(op, call, dtype, how_often(name))):
                compared.add(name)
    expected = {"paged", "compiled"} if dtype is torch.bfloat16 else {"paged", "triton"}
    assert compared >= expected
