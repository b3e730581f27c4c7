"""``SpeculativeConfig``: how tokens would be proposed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SpeculativeConfig"]

__surface__ = {
    "SpeculativeConfig": "shape: importable, for annotations and isinstance; there is no "
    "speculative decoding yet, so vllm_config.speculative_config is None",
}


@dataclass
class SpeculativeConfig:
    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
