"""What plugins give a model by name, in real processes: on the command line, in each rank; and
what they do in a worker that fails there."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from harness import run_command
from hookserve.engine import LLM
from hookserve.hookspecs import PluginSettings, current
from model_variants import QUANTIZED, copy_model, edit_config, rename_fields, rounded
from offline_engine import SUPPORT, OfflineEngine

PROMPTS = [[(7 * n + 11 * at + at * at) % 250 for at in range(3 + 19 * n)] for n in range(3)]
NEW_TOKENS = 8


def test_every_rank_has_what_plugins_give_a_model(tiny_llama: Path, tmp_path: Path) -> None:
    """Names that a plugin registers are taken on the command line; its configuration class, its
    quantization and its attention backend are in the workers, of which each is a process."""
    small, meant = rounded(tiny_llama)
    own = copy_model(tiny_llama, tmp_path / "own", small)
    rename_fields(own)
    edit_config(own, quantization_config=QUANTIZED)
    plain = copy_model(tiny_llama, tmp_path / "plain", meant)
    command = ["run", str(own), "--plugin", "model_kinds", "--attention-backend", "counting"]
    taken = run_command([*command, "-q", "int8_rows", "--dry-run"], env={"PYTHONPATH": SUPPORT})
    assert taken.returncode == 0, taken.stderr
    refused = run_command([*command, "-q", "int4_rows", "--dry-run"], env={"PYTHONPATH": SUPPORT})
    assert refused.returncode == 78
    assert "did you mean 'int8_rows'" in refused.stderr
    settings = PluginSettings(files=("model_kinds",), cache_dir=str(tmp_path))
    options = {"attention_backend": "counting", "tensor_parallel_size": 2}
    with OfflineEngine(plain) as engine:
        expected = engine.generate(PROMPTS, NEW_TOKENS)
    with OfflineEngine(own, settings, **options) as engine:
        assert engine.generate(PROMPTS, NEW_TOKENS) == expected
        num_steps = engine.core.num_steps
    saw = [json.loads(file.read_text()) for file in sorted(tmp_path.rglob("rank-*.json"))]
    assert len(saw) == 2
    for each in saw:
        assert each["config"] == "MyLlamaConfig"
        assert each["weight"] == "torch.int8"
        assert each["fused"] == ["gate_proj", "up_proj"]
        assert each["num_weights"] == len(small)
        assert (each["backend"], each["num_calls"]) == ("counting", num_steps)
        assert [step for step, _ in each["before"]] == list(range(1, num_steps + 1))
        sampled = list(chain.from_iterable(each["after"]))
        assert sampled == list(chain.from_iterable(zip(*expected, strict=True)))


def test_a_plugin_that_fails_while_a_worker_loads_is_out_everywhere(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its code runs when the model takes the fourth weight, in processes that everybody had
    compared notes with before."""
    (tmp_path / "lazy.py").write_text(
        "from hookserve.hookspecs import hookimpl\n"
        "@hookimpl\n"
        "def weights(iterator):\n"
        "    for count, item in enumerate(iterator):\n"
        "        if count == 3:\n"
        "            raise LookupError('no fourth one')\n"
        "        yield item\n"
    )
    options = {"tensor_parallel_size": 2, "kv_cache_memory_bytes": 8 << 20}
    llm = LLM(str(tiny_llama), plugins=[str(tmp_path / "lazy.py")], **options)
    try:
        (output,) = llm.generate({"prompt_token_ids": [1, 2, 3]})
        assert output.outputs[0].token_ids
        (plugin,) = [each for each in current().describe() if each.identity == "file:lazy"]
        assert plugin.state == "out"
    finally:
        llm.shutdown()
    said = "file:lazy failed in the worker process (run: hook weights raised LookupError: no fourth"
    assert said in caplog.text
