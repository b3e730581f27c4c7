"""``import vllm`` where the finder is in place: what is served, and what is not there."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.mark.usefixtures("vllm_facade")
def test_a_module_that_is_not_served_is_not_found() -> None:
    assert importlib.util.find_spec("vllm") is not None
    assert importlib.util.find_spec("vllm.no_such_module") is None
