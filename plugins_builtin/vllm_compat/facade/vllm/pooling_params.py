"""``PoolingParams``: what a pooling request asks for."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from hookserve.engine.sampling_rules import RequestOutputKind

from .tasks import PoolingTask

__all__ = ["PoolingParams"]

__surface__ = {
    "PoolingParams": "shape: holds what a pooling request asks, for IO processors and poolers; no "
    "pooling model is served",
}


@dataclass
class PoolingParams:
    """Plain data, changed freely by its holder."""

    task: PoolingTask | None = None
    dimensions: int | None = None
    """Of an embedding, where the model can be cut to fewer."""
    use_activation: bool | None = None
    """``None``: what the model's pooler does by itself."""
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    def clone(self) -> PoolingParams:
        """A copy that shares nothing that can be changed."""
        return copy.deepcopy(self)
