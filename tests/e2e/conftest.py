"""Servers that the tests of one module share, since each start costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import RunningServer

KV_CACHE = ("--kv-cache-memory-bytes", str(256 << 20))
"""Small: a test needs a few thousand tokens of context at most."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="module")
def default_server(smollm2_gguf: Path) -> Iterator[RunningServer]:
    """What a user gets who names no model, in the precision that this machine is given."""
    with RunningServer([*KV_CACHE, "--max-model-len", "2048"]) as server:
        yield server


@pytest.fixture(scope="module")
def exact_server(smollm2_gguf: Path) -> Iterator[RunningServer]:
    """The same model in float32, where a batch's shape does not change a word."""
    args = [str(smollm2_gguf), "--dtype", "float32", "--served-model-name", "m"]
    with RunningServer([*args, *KV_CACHE, "--max-model-len", "2048"]) as server:
        yield server


@pytest.fixture(scope="module")
def tiny_server(tiny_llama: Path) -> Iterator[RunningServer]:
    """A random model of 512 tokens of context that starts in a moment."""
    with RunningServer([str(tiny_llama), "--served-model-name", "m", *KV_CACHE]) as server:
        yield server
