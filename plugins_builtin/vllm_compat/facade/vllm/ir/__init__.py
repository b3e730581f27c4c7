"""Ops with several providers."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "IrOp": "refused: an op's providers are declared in the hook register_op_provider",
    "ops": "refused: an op's providers are declared in the hook register_op_provider",
    "register_op": "refused: an op's providers are declared in the hook register_op_provider",
}
