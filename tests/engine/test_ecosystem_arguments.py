"""Arguments of the ecosystem's ``LLM`` that this one has not."""

from __future__ import annotations

import logging

import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.llm import make_engine_args


def test_what_changes_nothing_may_be_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.ecosystem_arguments")
    given = {
        "gpu_memory_utilization": 0.5,
        "trust_remote_code": False,
        "pipeline_parallel_size": 1,
        "kv_cache_dtype": "auto",
        "speculative_config": None,
        "seed": 3,
    }
    args = make_engine_args(EngineArgs, "m", given)
    assert (args.model, args.seed) == ("m", 3)
    assert [record.getMessage() for record in caplog.records] == [
        "gpu_memory_utilization has no effect, because on a CPU the KV cache is sized by "
        "--kv-cache-memory-bytes"
    ]
    assert given["pipeline_parallel_size"] == 1, "what the caller has is not changed"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("trust_remote_code", True, "trust_remote_code=True is refused, because a checkpoint's co"),
        ("pipeline_parallel_size", 2, "pipeline_parallel_size=2 is refused, because tensor-paral"),
        ("speculative_config", {"method": "x"}, "speculative_config=.* is refused, because there"),
    ],
)
def test_what_would_have_to_change_something_is_refused(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine_args(EngineArgs, "m", {name: value})


@pytest.mark.parametrize("name", ["max_model_length", "port"])
def test_what_nobody_has_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        make_engine_args(EngineArgs, "m", {name: 1})
