"""``--dry-run``: every value with its origin, the memory plan, the plugins; nothing started."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_args import EngineArgs
from hookserve.hookspecs import PluginSettings, bootstrap
from hookserve.server.cli import main
from hookserve.server.memory_plan import estimate_weight_bytes, plan_memory
from hookserve.server.settings import all_specs


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOOKSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOOKSERVE_PLUGINS", "")


def lines_of(text: str, section: str) -> list[str]:
    """The lines of one section of the report, without their indent."""
    after = text.split(f"{section}\n", 1)[1]
    return [line.strip() for line in after.split("\n\n", 1)[0].splitlines()]


@pytest.mark.checklist(112)
def test_every_setting_is_listed_with_where_it_came_from(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("block-size = 8\n")
    words = ["run", str(tiny_llama), "--dry-run", "--config", str(file), "--max-num-seqs", "4"]
    assert main([*words, "--api-key", "sesame", "--api-key", "sesame2"]) == 0
    printed = capsys.readouterr()
    assert "sesame" not in printed.out + printed.err
    out = printed.out
    rows = [re.split(r"\s{2,}", line) for line in lines_of(out, "Settings")]
    assert [row[0] for row in rows] == [spec.key for spec in all_specs()]
    found = {row[0]: (row[1], row[2]) for row in rows}
    assert found["max-num-seqs"] == ("4", "flag --max-num-seqs")
    assert found["block-size"] == ("8", f"file {file}")
    assert found["plugins"][1] == "environment HOOKSERVE_PLUGINS"
    assert found["max-model-len"] == ("512", "the model")
    assert found["dtype"][0] == "float32" and "checkpoint" in found["dtype"][1]
    assert found["port"] == ("8000", "default")
    assert found["api-key"] == ("set (2)", "flag --api-key")
    assert found["admin-key"] == ("not set", "default")
    # 4 sequences of 512 tokens fit anywhere: 256 blocks of 8.
    (plan, weights) = lines_of(out, "Memory")
    assert "2048 tokens in 256 blocks" in plan and "4 sequences of 512 tokens" in plan
    assert "weights" in weights
    assert any("hookserve:builtin:cpu" in line for line in lines_of(out, "Plugins"))


def test_nothing_is_started(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    assert main(["run", str(tiny_llama), "--dry-run"]) == 0


CLAIM = """
from hookserve.hookspecs import ModelEntry, hookimpl

@hookimpl
def register_model():
    return ModelEntry("LlamaForCausalLM", "{stem}:Toy", info={{}})
"""


def plugin_words(folder: Path, source: str, *stems: str) -> list[str]:
    """Each stem once in this test process: its module stays imported."""
    words = []
    for stem in stems:
        file = folder / f"{stem}.py"
        file.write_text(source.format(stem=stem))
        words += ["--plugin", str(file)]
    return words


def test_a_conflict_is_78_and_both_names(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, CLAIM, "claim_one", "claim_two")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert "file:claim_one" in last and "file:claim_two" in last


CHANGE = """
from hookserve.hookspecs import hookimpl

@hookimpl
def engine_config(config):
    return {{"max_num_seqs": 4, "max_model_len": 256, "dtype": "bfloat16"}}
"""


def test_what_a_plugin_changed_has_the_plugin_as_its_origin(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, CHANGE, "changing_one")
    assert main(["run", str(tiny_llama), "--dry-run", "--max-num-seqs", "8", *words]) == 0
    printed = capsys.readouterr()
    rows = [re.split(r"\s{2,}", line) for line in lines_of(printed.out, "Settings")]
    found = {row[0]: row[1:] for row in rows}
    assert found["max-num-seqs"] == ["4", "plugin file:changing_one"]
    assert found["max-model-len"] == ["256", "plugin file:changing_one"]
    assert found["dtype"] == ["bfloat16", "plugin file:changing_one; asked for"]
    assert "4 sequences of 256 tokens" in printed.out
    assert "(it was 8, from flag --max-num-seqs)" in printed.err


ANY_CLAIM = """
from hookserve.hookspecs import Endpoint, Named, hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

class Own(CpuPlatform):
    pass

@hookimpl
def {hook}
"""


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("platform", '"{stem}:Own"'),
        ("model_source", 'Named("mine", "{stem}:Own")'),
        ("endpoint", 'Endpoint("mine", "{stem}:Own")'),
    ],
)
def test_every_kind_that_front_knows_has_its_conflict_told(
    kind: str, answer: str, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ANY_CLAIM.replace("{hook}", f"{kind}():\n    return {answer}")
    words = plugin_words(tmp_path, source, f"{kind}_first", f"{kind}_second")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"file:{kind}_first" in last and f"file:{kind}_second" in last
    assert "--disable-plugins" in last


def test_an_overridden_built_in_is_told(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, CLAIM, "claim_alone")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 0
    told = " ".join(lines_of(capsys.readouterr().out, "To know"))
    assert "file:claim_alone" in told and "LlamaForCausalLM" in told


ROUTE = """
from hookserve.hookspecs import Endpoint, hookimpl
from starlette.routing import Route

class Routes:
    def routes(self):
        return [Route("/mine", lambda request: None)]

@hookimpl
def endpoint():
    return Endpoint("{stem}", Routes)
"""
PLATFORM = """
from hookserve.hookspecs import hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

class Wide(CpuPlatform):
    @classmethod
    def check_and_update_config(cls, config):
        super().check_and_update_config(config)
        config.cache_config.block_size = 32

@hookimpl
def platform():
    return "{stem}:Wide"
"""


def test_two_plugins_on_one_path_are_told_before_a_start(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, ROUTE, "route_one", "route_two")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert "GET /mine" in last and "file:route_one" in last and "file:route_two" in last


def test_a_chat_template_that_is_none_is_told_before_a_start(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tiny_llama), "--dry-run", "--chat-template", "{% if %}"]) == 78
    assert "--chat-template" in capsys.readouterr().err.splitlines()[-1]


REQUIRED = """
from hookserve.hookspecs import hookimpl

class Logger:
    def __init__(self, vllm_config, engine_index):
        raise RuntimeError("no licence")

@hookimpl
def {hook}
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--hf-overrides", '{"quantization_config": {"quant_method": "awq"}}'], 74, "'awq'"),
        (["--hf-overrides.quantization_config.quant_method", "awq"], 74, "'awq'"),
        (["--override-generation-config", '{"min_p": "x"}'], 78, "min_p"),
        (["--override-generation-config.temperature", "warm"], 78, "temperature"),
        (["--host", "no.such.host.invalid"], 69, "no.such.host.invalid"),
        (["--uds", "no/such/folder/s"], 69, "no/such/folder"),
        (["--uds", __file__], 69, "is no socket"),
    ],
)
def test_what_a_start_refuses_before_the_engine_a_dry_run_refuses_too(
    tiny_llama: Path,
    words: list[str],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    for mode in (["--dry-run"], []):
        assert main(["run", str(tiny_llama), *words, *mode]) == code
        assert told in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("stem", "hook"),
    [
        ("dry_logger", "stat_logger(): return Logger"),
        ("dry_started", "process_started(roles, config): raise RuntimeError('no licence')"),
    ],
)
def test_a_required_plugin_that_fails_in_front_fails_a_dry_run(
    tiny_llama: Path, tmp_path: Path, stem: str, hook: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{stem}.py"
    file.write_text(REQUIRED.format(hook=hook))
    words = ["--plugin", str(file), "--require-plugins", stem]
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"file:{stem}" in last and "no licence" in last


ENDING = """
from hookserve.hookspecs import hookimpl

class Logger:
    def __init__(self, vllm_config, engine_index):
        print("{stem} was made")
    def shutdown(self):
        print("{stem} was ended")

@hookimpl
def stat_logger():
    return Logger
"""


def test_a_stat_logger_that_was_made_is_ended(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, ENDING, "dry_ending")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 0
    out = capsys.readouterr().out
    assert (out.count("dry_ending was made"), out.count("dry_ending was ended")) == (1, 1)


def test_what_a_platform_changes_is_shown_as_its_own(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = plugin_words(tmp_path, PLATFORM, "wide_platform")
    assert main(["run", str(tiny_llama), "--dry-run", *words]) == 0
    rows = [re.split(r"\s{2,}", r) for r in lines_of(capsys.readouterr().out, "Settings")]
    (row,) = [row for row in rows if row[0] == "block-size"]
    assert row[1] == "32"
    assert "file:wide_platform" in row[2] and "16" in row[2]


# -- the plan ------------------------------------------------------------------------------------


class Machine:
    """A platform with so much free memory."""

    def __init__(self, free: int) -> None:
        self.free = free

    def available_memory(self) -> tuple[int, str]:
        return self.free, "there is that much"


@pytest.fixture
def config(tiny_llama: Path) -> Iterator[EngineConfig]:
    host = bootstrap(["front"], PluginSettings(allow=()))
    yield EngineArgs(model=str(tiny_llama)).to_engine_config(host)
    host.close()


def test_the_plan_by_hand(config: EngineConfig, tiny_llama: Path) -> None:
    # Two layers, two heads of 16, key and value, float32: 512 bytes a token, 8192 a block.
    plan = plan_memory(config, Machine(1 << 30))
    assert plan.block_bytes == 2 * 2 * 2 * 16 * 4 * 16
    assert plan.num_tokens == 32 * 512
    assert plan.num_bytes == 32 * 512 * 512
    assert "32 sequences of 512 tokens" in plan.reason
    # Half of what the weights leave: 4 MiB, 512 blocks.
    weights = estimate_weight_bytes(config)
    small = plan_memory(config, Machine((8 << 20) + weights))
    assert small.num_blocks == (4 << 20) // plan.block_bytes
    assert "half of the free memory" in small.reason and "there is that much" in small.reason


def test_the_plan_of_two_ranks_by_hand(config: EngineConfig) -> None:
    parallel = msgspec.structs.replace(config.parallel, tensor_parallel_size=2)
    config = msgspec.structs.replace(config, parallel=parallel)
    weights = estimate_weight_bytes(config)
    plan = plan_memory(config, Machine((8 << 20) + weights))
    # One of the two key heads on each; half of its half of what the weights leave.
    assert plan.block_bytes == 2 * 2 * 1 * 16 * 4 * 16
    assert plan.num_blocks == (2 << 20) // plan.block_bytes
    assert plan.num_bytes == 2 * plan.num_blocks * plan.block_bytes
    assert "for each of 2 ranks" in plan.reason


def test_weights_are_estimated_in_the_dtype_that_they_will_have(tiny_llama: Path) -> None:
    from safetensors.numpy import load_file

    exact = sum(tensor.nbytes for tensor in load_file(tiny_llama / "model.safetensors").values())
    host = bootstrap(["front"], PluginSettings(allow=()))
    try:
        for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
            args = EngineArgs(model=str(tiny_llama), dtype=dtype)
            estimate = estimate_weight_bytes(args.to_engine_config(host))
            assert estimate == pytest.approx(exact * itemsize / 4, rel=0.02)
    finally:
        host.close()


def test_weights_of_gguf_are_counted(smollm2_gguf: Path) -> None:
    import gguf

    count = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(smollm2_gguf).tensors)
    host = bootstrap(["front"], PluginSettings(allow=()))
    try:
        config = EngineArgs(model=str(smollm2_gguf), dtype="bfloat16").to_engine_config(host)
        assert estimate_weight_bytes(config) == 2 * count
    finally:
        host.close()
