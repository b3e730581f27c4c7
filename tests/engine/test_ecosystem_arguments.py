"""Arguments of the ecosystem's ``LLM`` that this one has not."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from hookserve.engine.compilation_section import CompilationConfig
from hookserve.engine.config_sections import StructuredOutputsConfig
from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs
from hookserve.engine.errors import ConfigError


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
    args = EngineArgs(model="m", **given)
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
        EngineArgs(model="m", **{name: value})


@pytest.mark.parametrize("name", ["max_model_length", "port"])
def test_what_nobody_has_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        AsyncEngineArgs(model="m", **{name: 1})


def test_none_is_what_an_argument_is_without_being_given() -> None:
    names = [each.name for each in fields(EngineArgs) if each.init]
    assert EngineArgs(**dict.fromkeys(names)) == EngineArgs()


def test_what_a_plugin_may_be_the_first_to_choose_is_none() -> None:
    args = EngineArgs()
    assert (args.scheduler_cls, args.distributed_executor_backend) == (None, None)


def test_a_name_alone_and_sections_of_the_configuration_are_taken() -> None:
    args = EngineArgs(
        served_model_name="m",  # type: ignore[arg-type]
        compilation_config=CompilationConfig(custom_ops=["none"]),  # type: ignore[arg-type]
        structured_outputs_config=StructuredOutputsConfig(backend="x"),  # type: ignore[arg-type]
    )
    assert args.served_model_name == ("m",)
    assert args.compilation_config == {"custom_ops": ["none"]}
    assert args.structured_outputs_config == {"backend": "x"}
    assert EngineArgs(compilation_config=3).compilation_config == {"mode": 3}  # type: ignore[arg-type]


def test_what_is_taken_back_once_the_arguments_are_there_is_what_it_was(tiny_llama: Path) -> None:
    args = EngineArgs(model=str(tiny_llama), max_num_seqs=3, scheduler_cls="a:B")
    args.max_num_seqs = args.scheduler_cls = None  # type: ignore[assignment]
    scheduler = args.create_engine_config().scheduler_config
    assert (scheduler.max_num_seqs, scheduler.scheduler_cls) == (32, "default")
