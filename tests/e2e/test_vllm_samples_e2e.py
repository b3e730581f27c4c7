"""Two packages for vLLM in one real server that has no ``VLLM_PLUGINS``: a model, a stat logger, an
endpoint that a flag opens, a scheduler and an executor by their class paths; and an endpoint that
nobody opened."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import RunningServer, wait_until
from plugin_folder import install_package
from tiny_models import write_tiny_model

TOY = "vllm-toy-plugin:vllm.endpoint_plugins:toy_endpoint"
BODY = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> Path:
    site = tmp_path_factory.mktemp("samples")
    for name in ("vllm_samples", "vllm_toy_plugin"):
        install_package(site, source_root / "tests" / "toys" / name)
    return site


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("opt")
    model = write_tiny_model("opt", folder / "opt")
    args = [str(model), "--hf-overrides", '{"architectures": ["FirstTokenOPTForCausalLM"]}']
    args += ["--served-model-name", "m", "--max-num-seqs", "6", "--dtype", "bfloat16"]
    args += ["--enable-endpoints", "sample_admin", "--kv-cache-memory-bytes", str(64 << 20)]
    args += ["--worker-extension-cls", "vllm_samples.worker.SchedulerConfigExtension"]
    args += ["--scheduler-cls", "vllm_samples.engine.SampleScheduler"]
    args += ["--distributed-executor-backend", "vllm_samples.engine.SampleExecutor"]
    env = {
        "PYTHONPATH": str(site),
        "TOY_PLUGIN_TRACE": str(folder / "trace"),
        "HOOKSERVE_CACHE": str(folder / "cache"),
        "VLLM_LOG_STATS_INTERVAL": "0.25",
    }
    with RunningServer(args, env=env) as running:
        yield running


def said(server: RunningServer, part: str) -> list[str]:
    return [line for line in server.stderr.splitlines() if part in line]


@pytest.mark.checklist(31, 106, 118)
def test_1_an_endpoint_that_nobody_opened_has_no_route_and_one_line_says_why(
    server: RunningServer,
) -> None:
    assert server.get("/v1/toy/hello").status_code == 404
    (line,) = said(server, "are served only by name")
    assert f"{TOY} is not: give --enable-endpoints toy_endpoint, or set VLLM_PLUGINS to " in line
    assert "sample_admin is not" not in line
    # All that opens no route is there without a list.
    wait_until(lambda: said(server, "Toy: engine 0 is ready"), 10, "the toy's stat logger")
    (mine,) = [
        each
        for each in server.get("/v1/plugins").json()["processes"]["front"]
        if each["name"] == "toy_register"
    ]
    assert mine["state"] == "active"


@pytest.mark.checklist(40, 41, 47)
def test_2_logits_that_the_model_computes_are_those_that_count(server: RunningServer) -> None:
    for more in ({}, {"temperature": 1, "seed": 3}, {"logprobs": 1}):
        reply = server.post("/v1/completions", {**BODY, **more})
        assert reply.json()["choices"][0]["text"] == "!!!!!", reply.text


@pytest.mark.checklist(80, 81, 85, 89)
def test_3_the_stat_logger_is_told(server: RunningServer) -> None:
    (line,) = said(server, "sample of engine 0 is there")
    assert " INFO " in line
    wait_until(lambda: said(server, "sample: 15 tokens, reports: True"), 8, "its line")


@pytest.mark.checklist(97, 98, 101, 105)
def test_4_the_endpoint_asks_the_workers(server: RunningServer) -> None:
    reply = server.get("/v1/admin/scheduler_config")
    assert reply.json() == {"results": [{"max_num_seqs": 6, "rank": 0}]}


@pytest.mark.checklist(126, 128, 129, 133, 135)
def test_5_scheduler_and_executor_are_those_of_the_paths(server: RunningServer) -> None:
    engine = f"(Engine pid={server.engine_pid})"
    for line in (
        "sample: executor calls load_model",
        "sample: executor calls execute_model",
        "sample: scheduled 1 new",
        "scheduler 'vllm_samples.engine.SampleScheduler': a scheduler's interface is not stable",
    ):
        assert any(each.startswith(engine) for each in said(server, line)), server.output()
    assert len(said(server, "sample: executor calls load_model")) == 1


def test_6_it_ends_in_order(server: RunningServer) -> None:
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert "Traceback" not in server.stderr
