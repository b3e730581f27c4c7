"""The version of vLLM that plugins are shown."""

from __future__ import annotations

DEFAULT_VERSION = "0.32.0"


def presented_version() -> str:
    """What whoever asks now is shown."""
    return DEFAULT_VERSION
