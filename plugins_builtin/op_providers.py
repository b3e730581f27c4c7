"""Built-in plugin: ops by the compiled kernels, where there are any."""

from __future__ import annotations

from hookserve.hookspecs import OpProvider, hookimpl

_MODULE = "hookserve.ops.c_providers"
_CLASSES = {
    "rms_norm": "CRMSNorm",
    "silu_and_mul": "CSiluAndMul",
    "rotary_embedding": "CRotaryEmbedding",
}


@hookimpl
def register_op_provider() -> list[OpProvider]:
    return [
        OpProvider(op, "c", f"{_MODULE}:{name}", supports=f"{_MODULE}:supports")
        for op, name in _CLASSES.items()
    ]
