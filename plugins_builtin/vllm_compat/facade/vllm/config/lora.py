"""``LoRAConfig``: how adapters would be held."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LoRAConfig"]

__surface__ = {
    "LoRAConfig": "shape: importable, for annotations and isinstance; there are no adapters yet, "
    "so vllm_config.lora_config is None",
}


@dataclass
class LoRAConfig:
    max_lora_rank: int = 16
    max_loras: int = 1
    max_cpu_loras: int | None = None
    fully_sharded_loras: bool = False
    lora_dtype: str = "auto"
