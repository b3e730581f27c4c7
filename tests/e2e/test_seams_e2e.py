"""What plugins patch and subclass in the engine is reached in the process where it belongs: with
one worker, in the engine's process and with everything fast, and with two worker processes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import seams
from harness import RunningServer

LAYERS = 2
WIDE_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
"""The same weights in heads that the compiled kernels take."""
PROMPT = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}
CHAT = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 6,
    "temperature": 0,
    "ignore_eos": True,
}
ONCE = {
    "Worker.init_device": 1,
    "Worker.load_model": 1,
    "Worker.determine_available_memory": 1,
    "ModelRunner.load_model": 1,
    "DefaultModelLoader._prepare_weights": 2,
    "UnquantizedLinearMethod.process_weights_after_loading": 4 * LAYERS,
    "Attention.get_kv_cache_spec": 2 * LAYERS,
}
EACH_STEP = {
    "Worker.execute_model": 1,
    "ModelRunner.execute_model": 1,
    "ModelRunner._update_states": 1,
    "ModelRunner._prepare_inputs": 1,
    "Sampler.forward": 1,
    "LogitsProcessor._get_logits": 1,
    "UnquantizedLinearMethod.apply": 4 * LAYERS,
    "Attention.forward": LAYERS,
    "RMSNorm.forward_native": 2 * LAYERS + 1,
    "SiluAndMul.forward": LAYERS,
    "RotaryEmbedding._rotate": LAYERS,
}
NOT_ALL_STEPS = {"PagedAttentionImpl._decode"}
"""A prompt's is another method."""


class Life:
    """One life of a server with the plugin: what was called in each of its processes."""

    def __init__(self, folder: Path, model: Path, executor: str, *args: str) -> None:
        plugin = seams.write_plugin(folder, executor)
        trace = folder / "trace.jsonl"
        env = {"PYTHONPATH": str(folder), seams.TRACE: str(trace)}
        with RunningServer([str(model), "--plugin", str(plugin), *args], env=env) as server:
            assert server.post("/v1/completions", PROMPT).status_code == 200
            assert server.post("/v1/chat/completions", CHAT).status_code == 200
            reply = server.get("/v1/plugins").json()
            self.stderr = server.stderr
        self.ops: dict[str, Any] = reply["ops"]
        by_pid = seams.read_calls(trace)
        self.calls = {name: by_pid.pop(pid, Counter()) for name, pid in reply["pids"].items()}
        assert not by_pid, "no other process"

    @property
    def num_steps(self) -> int:
        return self.calls["engine"]["Scheduler.schedule"]

    def check_worker(self, process: str) -> None:
        """Each seam of a worker was called as often as it should be."""
        calls = self.calls[process]
        expected = {name: count * self.num_steps for name, count in EACH_STEP.items()} | ONCE
        assert expected.keys() | NOT_ALL_STEPS == seams.methods(seams.WORKER)
        assert {name: calls[name] for name in expected} == expected
        assert self.num_steps >= PROMPT["max_tokens"] + CHAT["max_tokens"]
        assert 0 < calls["PagedAttentionImpl._decode"] < LAYERS * self.num_steps


@pytest.fixture(scope="module")
def one_worker(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """In bfloat16, where there are fast paths to pass a patch over."""
    args = ["--dtype", "bfloat16", "--hf-overrides", json.dumps(WIDE_HEADS)]
    folder = tmp_path_factory.mktemp("one")
    return Life(folder, tiny_llama, "executor:UniProcExecutor", *args)


@pytest.fixture(scope="module")
def two_workers(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """With a scheduler and an executor by their class paths, which subclass what is patched."""
    args = ["--tensor-parallel-size", "2", "--scheduler-cls", "seam_classes:MyScheduler"]
    args += ["--distributed-executor-backend", "seam_classes:MyExecutor"]
    folder = tmp_path_factory.mktemp("two")
    return Life(folder, tiny_llama, "multiproc_executor:MultiprocExecutor", *args)


@pytest.mark.parametrize("shape", ["one_worker", "two_workers"])
def test_each_seam_of_the_front_is_reached(shape: str, request: pytest.FixtureRequest) -> None:
    life: Life = request.getfixturevalue(shape)
    assert life.calls["front"] == dict.fromkeys(seams.methods(seams.FRONT), 1)


@pytest.mark.parametrize("shape", ["one_worker", "two_workers"])
def test_each_seam_of_a_worker_is_reached_in_every_worker(
    shape: str, request: pytest.FixtureRequest
) -> None:
    life: Life = request.getfixturevalue(shape)
    processes = list(life.ops)
    assert processes == (["engine"] if shape == "one_worker" else ["worker 0", "worker 1"])
    for process in processes:
        life.check_worker(process)


def test_each_seam_of_the_engine_is_reached(one_worker: Life) -> None:
    calls = one_worker.calls["engine"]
    assert calls["Scheduler.__init__"] == 1
    assert calls["Scheduler.update_from_output"] == one_worker.num_steps
    assert calls["UniProcExecutor.collective_rpc"] > one_worker.num_steps


@pytest.mark.parametrize("shape", ["one_worker", "two_workers"])
def test_what_any_process_calls_is_not_taken_for_dead(
    shape: str, request: pytest.FixtureRequest
) -> None:
    """Engine and workers are patched in their own processes; the first request is no chat."""
    life: Life = request.getfixturevalue(shape)
    told = re.findall(r"replaced (.+), and nothing has called that", life.stderr)
    chat = "hookserve.server.openai_chat:ChatCompletionsEndpoint.render_chat_request"
    assert set(told) <= {chat}


def test_patches_of_what_is_subclassed_and_the_subclass_are_both_reached(two_workers: Life) -> None:
    calls, steps = two_workers.calls["engine"], two_workers.num_steps
    expected = {
        "Scheduler.__init__": 1,
        "MyScheduler.__init__": 1,
        "MyScheduler.schedule": steps,
        "Scheduler.update_from_output": steps,
        "MyScheduler.update_from_output": steps,
        "MyExecutor.collective_rpc init_device": 1,
        "MyExecutor.collective_rpc load_model": 1,
        "MyExecutor.collective_rpc execute_model": steps,
    }
    assert {name: calls[name] for name in expected} == expected
    assert calls["MultiprocExecutor.collective_rpc"] == sum(
        count for name, count in calls.items() if name.startswith("MyExecutor")
    )
    assert not calls.keys() & seams.methods(seams.WORKER), "those are the workers'"


def test_what_is_fast_is_left_out_where_a_patch_would_be_passed_over(one_worker: Life) -> None:
    plain = dict(re.findall(r"plain path for (\w+) because (.+)", one_worker.stderr))
    assert plain == {
        "rms_norm": "file:seams overrides RMSNorm.forward_native",
        "silu_and_mul": "file:seams overrides SiluAndMul.forward",
        "rotary_embedding": "file:seams overrides RotaryEmbedding._rotate",
        "attention": "file:seams overrides PagedAttentionImpl._decode",
    }
    reads_plain = "use plain weights: file:seams overrides UnquantizedLinearMethod.apply"
    assert one_worker.stderr.count(reads_plain) == 1
    (rows,) = one_worker.ops.values()
    reasons = {row["op"]: row["reason"] for row in rows}
    assert {op: reasons[op] for op in plain if op != "attention"} == {
        op: patch for op, patch in plain.items() if op != "attention"
    }


def test_the_page_names_each_seam(source_root: Path) -> None:
    page = (source_root / "docs" / "control.md").read_text()
    (table,) = re.findall(r"## What a plugin patches\n(.+?)\n## ", page, re.DOTALL)
    layers = {"RMSNorm.forward_native", "SiluAndMul.forward", "RotaryEmbedding._rotate"}
    ours = seams.methods((*seams.FRONT, *seams.ENGINE, *seams.WORKER))
    for name in ours - layers - {"PagedAttentionImpl._decode"}:
        holder, method = name.split(".")
        assert f"`{holder}." in table and re.search(rf"[`.]{method}`", table), name
