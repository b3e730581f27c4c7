"""``PoolerConfig``: how a model's hidden states would become one vector."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolerConfig"]

__surface__ = {
    "PoolerConfig": "shape: poolers may be built and tested with it; no pooling model is served, "
    "so model_config.pooler_config is None",
}


@dataclass
class PoolerConfig:
    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
