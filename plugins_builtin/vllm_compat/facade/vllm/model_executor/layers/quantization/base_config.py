"""What a quantization is."""

from __future__ import annotations

from typing import Any

from hookserve.ops.linear import QuantizeMethodBase
from hookserve.ops.quantization import QuantizationConfig

__all__ = ["QuantizationConfig", "QuantizeMethodBase", "method_has_implemented_embedding"]

__surface__ = {
    "QuantizationConfig": (
        "live: the worker makes one by from_config, and layers ask it for their method. "
        "override_quantization_method, maybe_update_config and get_cache_scale_mapper are not "
        "called"
    ),
    "QuantizeMethodBase": (
        "live: creates a layer's weights, applies them, and rearranges them once they are loaded"
    ),
    "method_has_implemented_embedding": "live: whether a method looks rows of an embedding up",
}


def method_has_implemented_embedding(method_class: type[Any]) -> bool:
    """Whether a class of methods defines ``embedding`` itself."""
    own = getattr(method_class, "embedding", None)
    return own is not None and own is not QuantizeMethodBase.embedding
