"""Fixtures: the served package in this process, and the application over a scripted engine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from hookserve.plugins_builtin.vllm_compat import finder
from hookserve.plugins_builtin.vllm_compat.distributions import PACKAGE
from served_script import byte_tokenizer as byte_tokenizer
from served_script import make_engine_config as make_engine_config
from served_script import serve_script as serve_script


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def vllm_facade() -> Iterator[None]:
    """``import vllm`` works in the test, by a finder that has met nobody, and is unknown again
    afterwards."""
    before = list(sys.meta_path)
    sys.meta_path[:] = [each for each in before if not isinstance(each, finder.FacadeFinder)]
    _forget_modules()
    finder.install()
    yield
    sys.meta_path[:] = before
    _forget_modules()


@pytest.fixture(scope="session")
def torch_threads() -> Iterator[None]:
    """Workers in this process choose how many threads torch uses; afterwards it is as before."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
