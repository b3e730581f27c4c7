"""Ops with several providers."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.ir_ops import IrOp

from . import ops

__all__ = ["IrOp", "ops"]

__surface__ = {
    "IrOp": "live: the class of the ops in vllm.ir.ops; made by the server alone",
    "ops": "live: the ops that plugins may implement",
    "register_op": (
        "refused: no model here computes an op of a plugin's own through it; register the op as a "
        "CustomOp, or call the function"
    ),
}
