"""Built-in plugin: ops by Triton's kernels on a GPU, and by compiled ones where there are any."""

from __future__ import annotations

from hookserve.hookspecs import OpProvider, hookimpl

_COMPILED = "hookserve.ops.c_providers"
_COMPILED_CLASSES = {
    "rms_norm": "CRMSNorm",
    "silu_and_mul": "CSiluAndMul",
    "rotary_embedding": "CRotaryEmbedding",
}
_TRITON = "hookserve.ops.triton.providers"
_TRITON_CLASSES = {
    "rms_norm": "TritonRMSNorm",
    "gemma_rms_norm": "TritonGemmaRMSNorm",
    "silu_and_mul": "TritonSiluAndMul",
    "gelu_and_mul": "TritonGeluAndMul",
    "rotary_embedding": "TritonRotaryEmbedding",
    "partial_rotary_embedding": "TritonPartialRotaryEmbedding",
    "kv_write": "TritonKVWrite",
}


@hookimpl
def register_op_provider() -> list[OpProvider]:
    compiled = [
        OpProvider(op, "c", f"{_COMPILED}:{name}", supports=f"{_COMPILED}:supports")
        for op, name in _COMPILED_CLASSES.items()
    ]
    by_triton = [
        OpProvider(op, "triton", f"{_TRITON}:{name}", supports=f"{_TRITON}:{name}.supports")
        for op, name in _TRITON_CLASSES.items()
    ]
    return compiled + by_triton
