"""``PoolingParams``: what a pooling request asks for. No pooling model is served so far."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from .sampling_rules import RequestOutputKind


@dataclass
class PoolingParams:
    """Plain data, changed freely by its holder. Names are the ecosystem's (vLLM's)."""

    task: str | None = None
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
