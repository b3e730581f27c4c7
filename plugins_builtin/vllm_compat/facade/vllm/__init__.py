"""The package's own names; each is imported when it is first asked for."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ModelRegistry": ".model_executor.models.registry",
}

__all__ = ["ModelRegistry"]

__surface__ = {
    "ModelRegistry": "live: fills the registry of models",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name], __name__), name)
    globals()[name] = found
    return found
