"""From what was asked to an ``EngineConfig``: automatic choices with reasons, refusals by key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import (
    ConfigError,
    HookserveError,
    ModelFileError,
    UnknownArchitectureError,
)
from hookserve.hookspecs import Host, PluginError, PluginSettings, bootstrap
from hookserve.plugins_builtin.cpu_platform import CpuPlatform
from tiny_llama import write_tiny_llama


@pytest.fixture
def front() -> Iterator[Callable[..., Host]]:
    """``front(*files)``: this process's host, with files as plugins; closed at the end."""
    hosts: list[Host] = []

    def start(*files: Path, **settings: Any) -> Host:
        names = tuple(str(file) for file in files)
        hosts.append(bootstrap(["front"], PluginSettings(files=names, allow=(), **settings)))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


@pytest.fixture
def host(front: Callable[..., Host]) -> Host:
    return front()


def build(host: Host, model: Path | str, **values: Any) -> EngineConfig:
    return EngineArgs(model=str(model), **values).to_engine_config(host)


def rewrite(model: Path, name: str = "config.json", **changes: Any) -> None:
    path = model / name
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    path.write_text(json.dumps(values))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")


WRONG_SIZES: list[tuple[str, Any]] = [
    ("hidden_size", -1),
    ("hidden_size", "64"),
    ("hidden_size", 64.0),
    ("hidden_size", True),
    ("num_hidden_layers", 0),
    ("num_hidden_layers", 99_999_999),
    ("num_hidden_layers", None),
    ("num_attention_heads", 0),
    ("num_key_value_heads", "x"),
    ("num_key_value_heads", 3),
    ("head_dim", "x"),
    ("intermediate_size", -1),
    ("vocab_size", 2**40),
    ("vocab_size", None),
    ("max_position_embeddings", float("inf")),
    ("max_position_embeddings", 2**62),
    ("max_position_embeddings", "512"),
    ("rms_norm_eps", float("nan")),
    ("rope_theta", "x"),
    ("rope_scaling", 1),
    ("sliding_window", "4096"),
]


@pytest.mark.parametrize(("key", "value"), WRONG_SIZES)
def test_a_size_that_is_none_is_refused_before_anything_is_built(
    host: Host, model: Path, key: str, value: Any
) -> None:
    rewrite(model, **{key: value})
    with pytest.raises(ModelFileError, match=f"'{key}'; expected a") as caught:
        build(host, model)
    assert str(model) in str(caught.value)
    assert caught.value.exit_code == 74


def test_a_size_that_an_override_breaks_is_the_settings_fault(host: Host, tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hf-overrides .*num_hidden_layers.*expected a whole"):
        build(host, tiny_llama, hf_overrides={"num_hidden_layers": 0})


def test_a_value_inside_a_table_is_named_with_the_table(host: Host, model: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 0}
    message = r"has 0 under 'rope_scaling\.factor'; expected a number above 0"
    with pytest.raises(ConfigError, match=r"--hf-overrides .*'rope_scaling.factor': 0"):
        build(host, model, hf_overrides={"rope_scaling": scaling})
    rewrite(model, rope_scaling=scaling)
    with pytest.raises(ModelFileError, match=message) as caught:
        build(host, model)
    assert str(model) in str(caught.value)


def test_a_scaled_rotation_stretches_the_length(host: Host, model: Path) -> None:
    rewrite(model, rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert build(host, model).model.max_model_len == 2048
    assert build(host, model, max_model_len=100).model.max_model_len == 100
    with pytest.raises(ConfigError, match=r"--max-model-len 2049: expected at most 2048"):
        build(host, model, max_model_len=2049)


# -- what the checkpoint says -------------------------------------------------------------------


def test_defaults_come_from_the_checkpoint(host: Host, tiny_llama: Path) -> None:
    config = build(host, tiny_llama)
    model = config.model
    assert model.path == str(tiny_llama)
    assert model.format == "safetensors"
    assert model.tokenizer == str(tiny_llama)
    assert model.served_model_names == (str(tiny_llama),)
    assert model.architectures == ("LlamaForCausalLM",)
    assert (model.dtype, model.max_model_len, model.vocab_size) == ("float32", 512, 260)
    assert model.generation_config["eos_token_id"] == 257
    assert config.device.platform == "hookserve.plugins_builtin.cpu_platform:CpuPlatform"
    assert config.device.platform_owner == "hookserve:builtin:cpu"
    assert config.device.device_type == "cpu"
    assert config.tree_changes == {}


def test_what_was_asked_reaches_the_struct(host: Host, tiny_llama: Path) -> None:
    config = build(
        host,
        tiny_llama,
        served_model_name=("a", "b"),
        dtype="bfloat16",
        max_model_len=100,
        seed=7,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        block_size=8,
        kv_cache_memory_bytes=1 << 20,
        enable_prefix_caching=False,
        enforce_eager=True,
        disable_log_stats=True,
        log_level="DEBUG",
        additional_config={"k": 1},
        load_format="safetensors",
    )
    assert config.model.served_model_names == ("a", "b")
    assert (config.model.dtype, config.model.dtype_reason) == ("bfloat16", "asked for")
    assert (config.model.max_model_len, config.model.seed) == (100, 7)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (3, 64)
    assert (config.cache.block_size, config.cache.kv_cache_memory_bytes) == (8, 1 << 20)
    assert config.cache.enable_prefix_caching is False
    assert config.enforce_eager and not config.log_stats
    assert config.log_level == "DEBUG"
    assert config.additional_config == {"k": 1}
    assert config.load.load_format == "safetensors"


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_dtype_auto_is_the_checkpoints(host: Host, model: Path, key: str) -> None:
    rewrite(model, torch_dtype=None)
    rewrite(model, **{key: "float16"})
    config = build(host, model)
    assert config.model.dtype == "float16"
    assert "checkpoint" in config.model.dtype_reason


def test_a_checkpoint_that_says_nothing_is_float32(host: Host, model: Path) -> None:
    rewrite(model, torch_dtype=None)
    assert build(host, model).model.dtype == "float32"


@pytest.mark.parametrize(
    ("flags", "expected"), [({"avx512_bf16", "avx2"}, "bfloat16"), ({"avx2"}, "float32")]
)
def test_dtype_auto_of_gguf_is_what_the_cpu_computes(
    flags: set[str],
    expected: str,
    host: Host,
    smollm2_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "hookserve.plugins_builtin.cpu_platform.read_cpu_flags", lambda: frozenset(flags)
    )
    config = build(host, smollm2_gguf)
    assert (config.model.format, config.model.dtype) == ("gguf", expected)
    assert "processor" in config.model.dtype_reason


def test_an_unsupported_dtype_is_refused_with_what_the_platform_has(
    host: Host, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPlatform, "supported_dtype_names", ("float32",))
    with pytest.raises(ConfigError, match=r"--dtype 'float16'.*platform cpu.*float32"):
        build(host, tiny_llama, dtype="float16")


def test_overrides_reach_deep_and_leave_the_rest(host: Host, model: Path) -> None:
    rewrite(model, rope_scaling={"rope_type": "linear", "factor": 2.0})
    changes = {"rope_scaling": {"factor": 4.0}, "max_position_embeddings": 1000}
    config = build(host, model, hf_overrides=changes)
    assert config.model.hf_config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config.model.hf_config["hidden_size"] == 64
    assert config.model.max_model_len == 4000


@pytest.mark.parametrize("nested", [False, True])
def test_an_override_cannot_make_a_checkpoint_quantized(
    host: Host, model: Path, nested: bool
) -> None:
    change: dict[str, Any] = {"quantization_config": {"quant_method": "awq"}}
    if nested:
        change = {"text_config": {**json.loads((model / "config.json").read_text()), **change}}
    with pytest.raises(ModelFileError, match=r"--hf-overrides .*quantized with 'awq'"):
        build(host, model, hf_overrides=change)


def test_a_platform_cannot_make_a_checkpoint_quantized(
    front: Callable[..., Host], model: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "quantizing.py"
    plugin.write_text(
        "from hookserve.hookspecs import hookimpl\n"
        "from hookserve.plugins_builtin.cpu_platform import CpuPlatform\n"
        "class Quantizing(CpuPlatform):\n"
        "    @classmethod\n"
        "    def check_and_update_config(cls, config):\n"
        "        config.model_config.hf_config.quantization_config = {'quant_method': 'x'}\n"
        "@hookimpl\ndef platform(): return 'quantizing:Quantizing'\n"
    )
    with pytest.raises(ModelFileError, match=r"file:quantizing left.*quantized with 'x'"):
        build(front(plugin), model)


# -- the generation config, the template, the tokenizer ------------------------------------------


def test_the_generation_config_can_be_left_out_replaced_and_changed(
    host: Host, model: Path, tmp_path: Path
) -> None:
    rewrite(model, "generation_config.json", temperature=0.6)
    assert build(host, model).model.generation_config["temperature"] == 0.6
    assert build(host, model, generation_config="vllm").model.generation_config == {}
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"top_k": 3}')
    config = build(
        host,
        model,
        generation_config=str(other),
        override_generation_config={"temperature": 0.1},
    )
    assert config.model.generation_config == {"top_k": 3, "temperature": 0.1}
    with pytest.raises(ConfigError, match="--generation-config"):
        build(host, model, generation_config=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match=r"'temperatur'.*did you mean 'temperature'"):
        build(host, model, override_generation_config={"temperatur": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "warm"),
        ("temperature", -0.5),
        ("temperature", float("nan")),
        ("temperature", None),
        ("top_p", 0),
        ("top_p", True),
        ("top_k", 1.5),
        ("top_k", -2),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", [1.1]),
    ],
)
def test_a_generation_default_that_cannot_be_stops_the_start(
    host: Host, model: Path, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(host, model, override_generation_config={key: value})
    assert "--override-generation-config" in str(caught.value)
    assert repr(value) in str(caught.value) and f"as {key}" in str(caught.value)
    assert caught.value.exit_code == 78


def test_a_chat_template_is_a_file_or_a_text(host: Host, tiny_llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}")
    assert build(host, tiny_llama, chat_template=str(file)).model.chat_template == "{{ messages }}"
    assert build(host, tiny_llama, chat_template="{{ x }}").model.chat_template == "{{ x }}"
    with pytest.raises(ConfigError, match="--chat-template"):
        build(host, tiny_llama, chat_template=str(tmp_path / "no.jinja"))
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"--chat-template .* that can be read .*utf-8"):
        build(host, tiny_llama, chat_template=str(file))


def test_a_tokenizer_of_its_own_goes_through_the_sources(
    host: Host, tiny_llama: Path, tmp_path: Path
) -> None:
    other = write_tiny_llama(tmp_path / "other")
    assert build(host, tiny_llama, tokenizer=str(other)).model.tokenizer == str(other)
    with pytest.raises(ModelFileError, match=r"--tokenizer '.*no': .*no such file or folder"):
        build(host, tiny_llama, tokenizer=str(tmp_path / "no"))
    with pytest.raises(ConfigError, match=r"^--tokenizer 'nothing'.*: expected a folder or"):
        build(host, tiny_llama, tokenizer="nothing")


# -- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "executor", "reason"),
    [
        ({}, "uni", "one rank needs no process of its own"),
        ({"tensor_parallel_size": 2}, "mp", "2 ranks, each a process of its own"),
        ({"distributed_executor_backend": "mp"}, "mp", "asked for"),
    ],
)
def test_the_executor_follows_the_number_of_ranks(
    values: dict[str, Any], executor: str, reason: str, host: Host, tiny_llama: Path
) -> None:
    parallel = build(host, tiny_llama, **values).parallel
    assert (parallel.distributed_executor_backend, parallel.executor_reason) == (executor, reason)
    assert parallel.workers_are_apart == (executor == "mp")


def test_the_worker_is_the_platforms_unless_one_is_asked_for(host: Host, tiny_llama: Path) -> None:
    assert build(host, tiny_llama).parallel.worker_cls == "hookserve.engine.worker:Worker"
    asked = build(host, tiny_llama, worker_cls="own_worker:Worker")
    assert asked.parallel.worker_cls == "own_worker:Worker"


@pytest.mark.parametrize(
    ("heads", "key_heads", "inner", "fits"),
    [
        (9, 3, 72, {1, 3, 9}),
        (9, 3, 1536, {1, 3}),
        (8, 2, 96, {1, 2, 4, 8}),
        (8, 2, 97, {1}),
        (4, 1, 96, {1, 2, 4}),
        (12, 4, 96, {1, 2, 4, 12}),
    ],
)
@pytest.mark.parametrize("inner_name", ["intermediate_size", "ffn_dim"])
def test_ranks_share_out_heads_and_the_inner_width_evenly(
    heads: int, key_heads: int, inner: int, fits: set[int], inner_name: str, host: Host, model: Path
) -> None:
    changes = {"intermediate_size": None, inner_name: inner}
    rewrite(
        model, "config.json", num_attention_heads=heads, num_key_value_heads=key_heads, **changes
    )
    for ranks in range(1, 13):
        if ranks in fits:
            assert build(host, model, tensor_parallel_size=ranks)
        else:
            with pytest.raises(ConfigError, match=f"--tensor-parallel-size {ranks}: expected"):
                build(host, model, tensor_parallel_size=ranks)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_model_len": 513}, ("--max-model-len 513", "at most 512")),
        (
            {"tensor_parallel_size": 3},
            ("--tensor-parallel-size 3", "4 attention heads and 2 key heads", ": 1, 2, 4"),
        ),
        ({"tensor_parallel_size": 0}, ("--tensor-parallel-size 0", "at least 1")),
        (
            {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
            ("--distributed-executor-backend 'uni'", "mp for --tensor-parallel-size 2"),
        ),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, ("--max-num-batched-tokens 8", "9")),
        ({"max_num_seqs": 0}, ("--max-num-seqs 0", "at least 1")),
        ({"max_model_len": -1}, ("--max-model-len -1", "at least 1")),
        ({"max_model_len": "x"}, ("--max-model-len 'x'", "a whole number")),
        ({"block_size": True}, ("--block-size True", "a whole number")),
        ({"kv_cache_memory_bytes": 10**30}, (f"-bytes {10**30}", "a whole number of 64 bits")),
        (
            {"num_gpu_blocks_override": 4, "kv_cache_memory_bytes": 1},
            ("--num-gpu-blocks-override 4", "--kv-cache-memory-bytes"),
        ),
        ({"num_gpu_blocks_override": 31}, ("--num-gpu-blocks-override 31", "at least 32")),
        ({"dtype": "bloat16"}, ("--dtype 'bloat16'", "did you mean 'bfloat16'")),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_key(
    values: dict[str, Any], words: tuple[str, ...], host: Host, tiny_llama: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(host, tiny_llama, **values)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 78


def test_a_cache_that_holds_one_request_is_enough(host: Host, tiny_llama: Path) -> None:
    for values in (
        {"num_gpu_blocks_override": 32},
        {"num_gpu_blocks_override": 3, "max_model_len": 33},
    ):
        config = build(host, tiny_llama, **values)
        assert config.cache.num_gpu_blocks_override == values["num_gpu_blocks_override"]


def test_a_refusal_says_where_the_value_came_from(host: Host, tiny_llama: Path) -> None:
    sources = {"max_model_len": "environment HOOKSERVE_MAX_MODEL_LEN"}
    with pytest.raises(ConfigError, match="from environment HOOKSERVE_MAX_MODEL_LEN"):
        build(host, tiny_llama, max_model_len=513, sources=sources)


def test_a_model_without_a_stated_length_needs_one(host: Host, model: Path) -> None:
    rewrite(model, max_position_embeddings=None)
    with pytest.raises(ConfigError, match="--max-model-len"):
        build(host, model)
    assert build(host, model, max_model_len=64).model.max_model_len == 64


def test_an_unknown_architecture_is_refused_in_front(host: Host, model: Path) -> None:
    rewrite(model, architectures=["LlamaForCausalML"])
    with pytest.raises(UnknownArchitectureError, match="LlamaForCausalLM"):
        build(host, model)


def test_a_reference_that_no_source_knows_lists_the_sources(host: Host) -> None:
    with pytest.raises(ConfigError, match="model sources: local, pypi, hub"):
        build(host, "not a model")


def test_a_path_that_does_not_exist_is_74(host: Host) -> None:
    with pytest.raises(HookserveError) as caught:
        build(host, "./no/such/folder")
    assert caught.value.exit_code == 74


# -- plugins -------------------------------------------------------------------------------------

SOURCE = """
from hookserve.hookspecs import Named, hookimpl
FOLDER = {folder!r}

class Source:
    def matches(self, reference):
        return reference.startswith("toy:")

    def resolve(self, reference, *, revision, cache_dir):
        if reference == "toy:broken":
            raise KeyError("nothing there")
        if reference == "toy:exit":
            raise SystemExit(3)
        assert (revision, cache_dir) == ("main", "/cache")
        return FOLDER

@hookimpl
def model_source():
    return Named("toy", "{stem}:Source")
"""


def test_a_plugins_source_resolves_a_reference(
    front: Callable[..., Host], tiny_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "toy_source.py"
    file.write_text(SOURCE.format(folder=str(tiny_llama), stem="toy_source"))
    host = front(file)
    config = build(host, "toy:x", revision="main", cache_dir="/cache")
    assert config.model.path == str(tiny_llama)
    assert config.model.served_model_names == ("toy:x",)
    with pytest.raises(PluginError, match=r"file:toy_source.*KeyError.*nothing there"):
        build(host, "toy:broken", revision="main", cache_dir="/cache")
    with pytest.raises(PluginError, match=r"file:toy_source.*SystemExit: 3"):
        build(host, "toy:exit", revision="main", cache_dir="/cache")


@pytest.mark.parametrize(
    ("stem", "statement"),
    [("toy_raises", "raise OSError('no board')"), ("toy_exits", "raise SystemExit(3)")],
)
def test_a_platform_that_fails_at_the_configuration_is_named(
    stem: str, statement: str, front: Callable[..., Host], tiny_llama: Path, tmp_path: Path
) -> None:
    source = PLATFORM.replace("vllm_config.cache_config.block_size = 32", statement)
    file = tmp_path / f"{stem}.py"
    file.write_text(source.format(stem=stem))
    with pytest.raises(PluginError, match=rf"file:{stem}.*check_and_update_config raised"):
        build(front(file), tiny_llama)


PLATFORM = """
from hookserve.hookspecs import hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

class ToyPlatform(CpuPlatform):
    device_name = "toy"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        vllm_config.cache_config.block_size = 32
        vllm_config.compilation_config.custom_ops.append("all")
        vllm_config.parallel_config.worker_cls = ToyWorker

class ToyWorker:
    pass

@hookimpl
def platform():
    return "{stem}:ToyPlatform"
"""


def test_a_platforms_changes_become_part_of_the_struct_with_its_name(
    front: Callable[..., Host],
    tiny_llama: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("hookserve"), "propagate", True)
    caplog.set_level(logging.INFO, "hookserve")
    file = tmp_path / "toy_platform.py"
    file.write_text(PLATFORM.format(stem="toy_platform"))
    config = build(front(file), tiny_llama)
    assert config.device.platform == "toy_platform:ToyPlatform"
    assert config.device.platform_owner == "file:toy_platform"
    assert config.cache.block_size == 32
    assert config.parallel.worker_cls == "toy_platform:ToyWorker"
    assert config.tree_changes == {"compilation_config.custom_ops": ["all"]}
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        "file:toy_platform changed cache_config.block_size from 16 to 32" in x for x in lines
    )


def test_creating_the_model_config_can_be_patched(
    host: Host, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = EngineArgs.create_model_config

    def patched(self: EngineArgs) -> Any:
        model = original(self)
        model.max_model_len = 33
        return model

    monkeypatch.setattr(EngineArgs, "create_model_config", patched)
    assert build(host, tiny_llama).model.max_model_len == 33
