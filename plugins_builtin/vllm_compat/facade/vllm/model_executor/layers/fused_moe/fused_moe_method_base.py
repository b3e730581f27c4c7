"""What would compute a layer of experts."""

from __future__ import annotations

from hookserve.ops.linear import QuantizeMethodBase

__all__ = ["FusedMoEMethodBase"]

__surface__ = {
    "FusedMoEMethodBase": "shape: may be subclassed; nobody asks for it",
}


class FusedMoEMethodBase(QuantizeMethodBase):
    """Base of the methods for layers of experts."""
