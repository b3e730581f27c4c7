"""Requests and answers of ``/pooling``."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hookserve.engine.text.plain_data import PlainData

__all__ = ["IOProcessorRequest", "IOProcessorResponse"]

_NO_ROUTE = "the route /pooling is not served so far"
__surface__ = {
    "IOProcessorRequest": f"shape: for annotations and an IO processor's own tests; {_NO_ROUTE}",
    "IOProcessorResponse": f"shape: for annotations and an IO processor's own tests; {_NO_ROUTE}",
    "PoolingRequest": f"refused: {_NO_ROUTE}; an endpoint plugin has routes of its own",
    "PoolingResponse": f"refused: {_NO_ROUTE}; an endpoint plugin has routes of its own",
}

T = TypeVar("T")


@dataclass
class IOProcessorRequest(PlainData, Generic[T]):
    """``data`` is the processor's to read."""

    data: T
    task: str = "plugin"
    model: str | None = None
    user: str | None = None
    priority: int = 0
    request_id: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None


@dataclass
class IOProcessorResponse(PlainData, Generic[T]):
    """``data`` is what the processor made."""

    data: T
    request_id: str | None = None
    created_at: int = field(default_factory=lambda: int(time.time()))
