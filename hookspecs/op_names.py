"""The names of the built-in ops: the one that each is registered under, and its class, if it has
one.

The classes and functions are ``hookserve.ops``'; here are their names, for processes that do
without torch. An op may be called by either name, and both mean one thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OP_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "rms_norm": "RMSNorm",
        "gemma_rms_norm": "GemmaRMSNorm",
        "silu_and_mul": "SiluAndMul",
        "gelu_and_mul": "GeluAndMul",
        "rotary_embedding": "RotaryEmbedding",
        "partial_rotary_embedding": "PartialRotaryEmbedding",
        "replicated_linear": "ReplicatedLinear",
        "column_parallel_linear": "ColumnParallelLinear",
        "merged_column_parallel_linear": "MergedColumnParallelLinear",
        "qkv_parallel_linear": "QKVParallelLinear",
        "row_parallel_linear": "RowParallelLinear",
        "vocab_parallel_embedding": "VocabParallelEmbedding",
        "parallel_lm_head": "ParallelLMHead",
        "logits_processor": "LogitsProcessor",
        "attention": "Attention",
    }
)

FUNCTION_OPS: tuple[str, ...] = (
    "embedding",
    "linear",
    "kv_write",
    "paged_attention_decode",
    "paged_attention_prefill",
    "logits",
    "sampling",
)
"""What layers of several classes, and the engine, compute with: there is no class to replace, but
it can be provided."""

_REGISTERED = {class_name: registered for registered, class_name in OP_CLASSES.items()}


def class_of(op: str) -> str:
    """The class name of an op that is given by either name; another name stays as it is."""
    return OP_CLASSES.get(op, op)


def registered_of(op: str) -> str:
    """The registered name of an op that is given by either name; another name stays as it is."""
    return _REGISTERED.get(op, op)


def canonical(kind: str, name: str) -> str:
    """The name under which a registry of this kind keeps what is claimed as ``name``."""
    if kind == "oot_op":
        return class_of(name)
    if kind == "op_provider":
        op, _, provider = name.partition(".")
        return f"{registered_of(op)}.{provider}"
    return name
