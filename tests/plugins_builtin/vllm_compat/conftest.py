"""The fixture with which a test of the served package imports it in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from hookserve.plugins_builtin.vllm_compat import finder


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == finder.PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def vllm_facade() -> Iterator[None]:
    """``import vllm`` works in the test, and is unknown again afterwards."""
    before = list(sys.meta_path)
    _forget_modules()
    finder.install()
    yield
    sys.meta_path[:] = before
    _forget_modules()
