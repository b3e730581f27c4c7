"""``LoRARequest``: an adapter by its name and path."""

from __future__ import annotations

from hookserve.engine.lora_resolver import LoRARequest

__all__ = ["LoRARequest"]

__surface__ = {
    "LoRARequest": "shape: what a resolver answers; there are no adapters yet, so a request that "
    "has one is refused",
}
