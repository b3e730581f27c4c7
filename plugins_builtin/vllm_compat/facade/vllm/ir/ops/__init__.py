"""The ops that plugins may implement."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.ir_ops import make_norms

__all__ = ["fused_add_rms_norm", "rms_norm"]

__surface__ = {
    "fused_add_rms_norm": (
        "live: register_impl makes a function a provider of the op rms_norm, with a residual; "
        "calling it computes the native one"
    ),
    "rms_norm": (
        "live: register_impl makes a function a provider of the op rms_norm; calling it computes "
        "the native one"
    ),
    "gelu_and_mul_sparse": "refused: no architecture that is served computes it",
}

rms_norm, fused_add_rms_norm = make_norms()
