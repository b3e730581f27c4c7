"""``ServedDistribution``: what ``importlib.metadata`` finds under the name ``vllm``.

Nothing of it is on disk. It has no entry points and no requirements; its version is what is
presented to whoever asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from .distributions import PACKAGE


class ServedDistribution(Distribution):
    """The record of the served package.

    Args:
        folder: what ``vllm`` lies in.
        version: asked each time.
    """

    def __init__(self, folder: Path, version: Callable[[], str]) -> None:
        self._folder = folder
        self._asked_version = version

    def read_text(self, filename: Any) -> str | None:
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {self._asked_version()}\n"
        return f"{PACKAGE}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        return self._folder / path
