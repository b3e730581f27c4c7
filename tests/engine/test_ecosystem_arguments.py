"""Arguments of the ecosystem's ``LLM`` that this one has not."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from hookserve.engine.compilation_section import CompilationConfig, CompilationMode
from hookserve.engine.config_sections import StructuredOutputsConfig
from hookserve.engine.ecosystem_arguments import OTHERS
from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.op_settings import read_custom_ops
from hookserve.engine.vllm_flags import VLLM_FLAGS


def test_what_changes_nothing_may_be_given(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.ecosystem_arguments")
    given = {
        "gpu_memory_utilization": 0.9,
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


# fmt: off
_OF_SERVERS = [
    "allowed_headers", "allowed_methods", "allow_credentials", "api_server_count",
    "chat_template_content_format", "default_chat_template_kwargs",
    "disable_access_log_for_endpoints", "disable_uvicorn_access_log", "enable_force_include_usage",
    "enable_log_outputs", "enable_log_requests", "enable_offline_docs",
    "enable_per_request_metrics", "enable_prompt_tokens_details", "enable_request_id_headers",
    "enable_scale_out", "enable_server_load_tracking", "enable_ssl_refresh",
    "enable_tokenizer_info_endpoint", "fingerprint_mode", "fingerprint_value", "grpc", "grpc_port",
    "h11_max_header_count", "h11_max_incomplete_event_size", "headless", "log_error_stack",
    "logging_config", "lora_modules", "max_log_len", "response_role", "return_tokens_as_token_ids",
    "sse_keep_alive_interval", "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile",
    "tokens_only", "tool_server", "tool_strict_level", "trust_request_chat_template",
    "trust_request_mm_kwargs", "uvicorn_log_level",
]
# fmt: on
"""Flags that no engine is given."""


def test_each_other_argument_of_an_engine_can_be_read() -> None:
    flags = [each for each in VLLM_FLAGS if each.verdict != "works"]
    names = {each.name.replace("-", "_") for each in flags} - set(_OF_SERVERS)
    assert names | {"download_dir", "model_weights"} == set(OTHERS)
    args = EngineArgs()
    for name in OTHERS:
        value = getattr(args, name)
        setattr(args, name, value)
        assert getattr(args, name) == value
    assert (args.gpu_memory_utilization, args.max_lora_rank, args.nnodes) == (0.5, 16, 1)


def test_what_is_set_of_them_is_told_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.ecosystem_arguments")
    args, other = EngineArgs(gpu_memory_utilization=0.9), EngineArgs()
    args.gpu_memory_utilization -= 0.4
    args.gpu_memory_utilization = 0.75
    args.runner = "generate"
    assert (args.gpu_memory_utilization, args.runner) == (0.75, "generate")
    assert (other.gpu_memory_utilization, other.runner) == (0.5, "auto")
    assert len(caplog.records) == 2, "0.9 - 0.4 is what it is anyway"
    args.download_dir = "somewhere"
    assert (args.cache_dir, EngineArgs(download_dir="d").cache_dir) == ("somewhere", "d")
    with pytest.raises(ConfigError, match="cpu_offload_gb=4 is refused, because weights stay in"):
        args.cpu_offload_gb = 4
    with pytest.raises(ConfigError, match="model_weights='s3' is refused, because weights are rea"):
        args.model_weights = "s3"
    args.limit_mm_per_prompt["image"] = 2
    assert args.limit_mm_per_prompt == {}


def test_sections_among_the_arguments_have_attributes_too() -> None:
    args = EngineArgs(compilation_config={"custom_ops": ["none"], "mode": 3})
    section = args.compilation_config
    section.custom_ops.append("+rms_norm")
    assert section.mode is CompilationMode.VLLM_COMPILE
    assert section == {"custom_ops": ["none", "+rms_norm"], "mode": 3}
    section.mode = CompilationMode.NONE
    section.pass_config.enable_sp = True
    assert section.said().keys() == {"custom_ops", "pass_config"}
    assert EngineArgs().compilation_config.splitting_ops == []
    assert EngineArgs().structured_outputs_config.backend == "auto"
    args.structured_outputs_config.backend = "mine"
    assert args.structured_outputs_config == {"backend": "mine"}
    with pytest.raises(
        AttributeError, match=r"CompilationConfig among .* has no 'custom_opps'; exp"
    ):
        section.custom_opps = ["all"]
    with pytest.raises(AttributeError, match=r"StructuredOutputsConfig .* has no 'grammar'; "):
        args.structured_outputs_config.grammar  # noqa: B018


def test_what_was_only_read_of_a_section_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    args = EngineArgs()
    assert (args.compilation_config.splitting_ops, args.compilation_config.custom_ops) == ([], [])
    assert args.compilation_config.said() == {} and read_custom_ops(args) == []
    assert caplog.records == []
    args.compilation_config.splitting_ops.append("my::op")
    assert read_custom_ops(args) == []
    assert "splitting_ops has no effect" in caplog.text
