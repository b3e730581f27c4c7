"""The host of a program that outlives the engines that it makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookserve.engine import LLM, SamplingParams
from hookserve.engine.offline_host import offline_settings
from hookserve.hookspecs import HostError, bootstrap, current


def test_a_host_that_is_held_stays_and_is_told_of_its_start_once(
    tiny_llama: Path, torch_threads: None
) -> None:
    host = bootstrap(("front", "engine", "worker"), offline_settings())
    host.hold()
    texts = []
    try:
        for _ in range(2):
            with LLM(str(tiny_llama), num_gpu_blocks_override=64, seed=0) as llm:
                assert host.calls.is_started  # to tell it again would be an error
                texts += llm.generate(["hello"], SamplingParams(max_tokens=3, temperature=0))
            assert current() is host
    finally:
        host.release()

    assert texts[0].outputs[0].token_ids == texts[1].outputs[0].token_ids
    with pytest.raises(HostError, match="no plugin host"):
        current()
