"""The toy package for vLLM in real servers: model, op, stat logger and endpoint, each doing its job
in the processes that need it, on a folder, a GGUF file and with two ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, run_command, wait_until
from hookserve.engine import LLM, SamplingParams
from hookserve.hookspecs import PluginSettings
from plugin_folder import install_package, install_plugin
from tiny_llama import LAYERS

PLUGINS = "toy_register,toy_stat_logger,toy_endpoint"
RENAMED = ["--hf-overrides", '{"architectures": ["ToyLlamaForCausalLM"]}']
SMALL = ["--kv-cache-memory-bytes", str(64 << 20)]
SMOLLM2_LAYERS = 30
TEXTS = ("The capital of France is", "Once upon a time", "1, 2, 3,")
TOKENS = [[1, 2, 3], [40, 50], [7 * at for at in range(30)]]
NUM_TOKENS = 8
TOY = "vllm-toy-plugin:vllm.general_plugins:toy_register"
MODEL_MODULE = "vllm_toy_plugin.model"

PROBE = """
import json
import os

from hookserve.hookspecs import hookimpl


@hookimpl
def model_loaded(model):
    from hookserve.ops.layernorm import RMSNorm

    norms = [each for each in model.modules() if isinstance(each, RMSNorm)]
    told = {
        "event": "model",
        "pid": os.getpid(),
        "class": f"{type(model).__module__}:{type(model).__qualname__}",
        "norms": len(norms),
        "marked": sum(getattr(each, "toy", False) is True for each in norms),
    }
    with open(os.environ["TOY_PLUGIN_TRACE"], "a") as trace:
        trace.write(json.dumps(told) + "\\n")
"""
COUNTING = """
def register():
    from . import op
"""
COUNTING_OP = """
from vllm.model_executor.layers.activation import SiluAndMul


@SiluAndMul.register_oot
class Counting(SiluAndMul):
    calls = 0

    def forward_native(self, x):
        Counting.calls += 1
        return super().forward_native(x)


class Counted:
    def get_calls(self):
        return {"rank": self.rank, "calls": Counting.calls}
"""
COUNTING_ROUTE = """
from fastapi import HTTPException, Request
from vllm.plugins.endpoint_plugins.interface import EndpointPlugin


class Calls(EndpointPlugin):
    name = "calls"
    required_tasks = None

    def attach_router(self, app):
        @app.get("/v1/calls")
        async def calls(raw_request: Request):
            engine = raw_request.app.state.calls_engine
            if engine is None:
                raise HTTPException(status_code=503, detail="there is no engine")
            return await engine.collective_rpc("get_calls")

    async def init_state(self, engine_client, state, args):
        state.calls_engine = engine_client
"""


class Tour:
    """A folder with the toy, and with a plugin that looks at each worker's model."""

    def __init__(self, folder: Path, toy: Path) -> None:
        self.site = folder / "site"
        self._folder = folder
        install_package(self.site, toy)
        install_plugin(self.site, "tour-probe", {"tour_probe": PROBE}, toml='roles = ["worker"]')

    def environment(self, name: str, plugins: str | None = PLUGINS) -> dict[str, str]:
        """
        Args:
            name: of the server's trace.
            plugins: ``VLLM_PLUGINS``.
        """
        listed = {} if plugins is None else {"VLLM_PLUGINS": plugins}
        return {
            "PYTHONPATH": str(self.site),
            "TOY_PLUGIN_TRACE": str(self._folder / name),
            "HOOKSERVE_CACHE": str(self._folder / "cache"),
            "VLLM_LOG_STATS_INTERVAL": "0.25",
            **listed,
        }

    def trace(self, name: str, event: str) -> list[dict[str, Any]]:
        lines = (self._folder / name).read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def registered(self, name: str) -> list[str]:
        """The kinds of the processes in which ``register`` was called, as often as it was."""
        return sorted(kind(each) for each in self.trace(name, "register"))

    def importers(self, name: str, module: str) -> list[str]:
        """The kinds of the processes that have imported the module."""
        found = self.trace(name, "import")
        return sorted(kind(each) for each in found if each["module"] == module)


def kind(traced: Mapping[str, Any]) -> str:
    """Which process of a server wrote a line of the trace."""
    argv = traced["argv"]
    return argv[argv.index("-m") + 1].rpartition(".")[2] if "-m" in argv else "front"


def complete(server: RunningServer, prompts: Any) -> list[str]:
    body = {"prompt": prompts, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    reply = server.post("/v1/completions", body)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def say_plainly(model: Path, prompts: Any) -> list[str]:
    """What the model says without any plugin."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    none = PluginSettings(allow=(), adapter_lists={"vllm": ""})
    with LLM(str(model), plugin_settings=none, kv_cache_memory_bytes=64 << 20) as llm:
        return [output.outputs[0].text for output in llm.generate(prompts, params)]


def op_in(server: RunningServer, name: str) -> dict[str, dict[str, Any]]:
    """What one op is in each process that has it."""
    tables = server.get("/v1/plugins").json()["ops"]
    return {
        process: next(row for row in rows if row["op"] == name) for process, rows in tables.items()
    }


def lines_with(server: RunningServer, part: str) -> list[str]:
    return [line for line in server.stderr.splitlines() if part in line]


def check_tokens_are_logged(server: RunningServer, count: int) -> None:
    """Twice within less than the interval that holds when none is set."""
    made = f"Toy: engine 0 made {count} tokens"
    wait_until(lambda: len(lines_with(server, made)) >= 2, 8, f"{made!r} twice")
    (ready,) = lines_with(server, "Toy: engine 0 is ready")
    assert " INFO " in ready and "vllm-toy-plugin:vllm.stat_logger_plugins" in ready


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> Tour:
    toy = source_root / "tests" / "toys" / "vllm_toy_plugin"
    return Tour(tmp_path_factory.mktemp("tour"), toy)


@pytest.fixture(scope="module")
def smollm2_says(smollm2_f32: Path) -> list[str]:
    return say_plainly(smollm2_f32, list(TEXTS))


@pytest.mark.checklist(
    2, 13, 15, 38, 42, 46, 47, 49, 51, 54, 55, 56, 75, 77, 86, 87, 89, 91, 97, 98, 110, 111, 112
)
def test_1_a_folder_is_served_by_all_parts_of_the_toy(
    tour: Tour, smollm2_f32: Path, smollm2_says: list[str]
) -> None:
    args = [str(smollm2_f32), *RENAMED, "--compilation-config", '{"custom_ops": ["+RMSNorm"]}']
    with RunningServer([*args, *SMALL], env=tour.environment("folder")) as server:
        assert complete(server, list(TEXTS)) == smollm2_says
        hello = server.get("/v1/toy/hello")
        assert (hello.status_code, hello.json()) == (200, {"hello": "from the toy"})
        (norm,) = op_in(server, "rms_norm").values()
        check_tokens_are_logged(server, NUM_TOKENS * len(TEXTS))
        (model,) = tour.trace("folder", "model")
        assert model["pid"] == server.engine_pid
    count = 2 * SMOLLM2_LAYERS + 1
    assert model["class"] == f"{MODEL_MODULE}:ToyLlamaForCausalLM"
    assert (model["norms"], model["marked"]) == (count, count)
    assert (norm["implementation"], norm["owner"]) == ("vllm_toy_plugin.ops:ToyRMSNorm", TOY)
    assert norm["built"] == count and norm["calls"] >= count * NUM_TOKENS
    # One process is both engine and worker.
    assert tour.registered("folder") == ["front", "inspector", "process"]
    assert tour.importers("folder", MODEL_MODULE) == ["inspector", "process"]


@pytest.mark.checklist(32, 48, 50, 52, 67, 73)
def test_2_a_gguf_file_too_and_the_op_by_its_other_name(
    tour: Tour, smollm2_gguf: Path, smollm2_says: list[str]
) -> None:
    """Nothing but that op is on; and what the inspector has found before is known. In float32,
    where a norm by torch and one by a compiled kernel are the same."""
    args = [str(smollm2_gguf), "--dtype", "float32", *RENAMED, *SMALL]
    args += ["--compilation-config", '{"custom_ops": ["none", "+rms_norm"]}']
    with RunningServer(args, env=tour.environment("gguf")) as server:
        assert complete(server, list(TEXTS)) == smollm2_says
        assert server.get("/v1/toy/hello").status_code == 200
        (norm,) = op_in(server, "rms_norm").values()
        (line,) = lines_with(server, "overrides forward_cuda of rms_norm (RMSNorm)")
    (model,) = tour.trace("gguf", "model")
    count = 2 * SMOLLM2_LAYERS + 1
    assert model["class"] == f"{MODEL_MODULE}:ToyLlamaForCausalLM"
    assert model["marked"] == norm["built"] == count
    assert " WARNING " in line and "the platform 'cpu' does not call" in line
    assert tour.registered("gguf") == ["front", "process"]
    assert tour.importers("gguf", MODEL_MODULE) == ["process"]


@pytest.mark.checklist(14, 16, 30, 38, 49, 51, 55, 66, 67, 85, 101, 118, 130)
def test_3_with_two_ranks_each_worker_has_the_toys_parts(
    tour: Tour, tiny_llama: Path, tmp_path: Path
) -> None:
    groups = {
        "vllm.general_plugins": {"count": "counting:register"},
        "vllm.endpoint_plugins": {"calls": "counting.route:Calls"},
    }
    files = {"counting/op.py": COUNTING_OP, "counting/route.py": COUNTING_ROUTE}
    install_plugin(tmp_path, "counting-dist", {"counting": COUNTING}, groups=groups, files=files)
    env = tour.environment("ranks", f"{PLUGINS},count,calls")
    env["PYTHONPATH"] += f":{tmp_path}"
    args = [str(tiny_llama), *RENAMED, "--compilation-config", '{"custom_ops": ["+RMSNorm"]}']
    args += ["--tensor-parallel-size", "2", "--worker-extension-cls", "counting.op.Counted"]
    with RunningServer([*args, *SMALL], env=env) as server:
        assert complete(server, TOKENS) == say_plainly(tiny_llama, TOKENS)
        counted = server.get("/v1/calls").json()
        silu, norm = op_in(server, "silu_and_mul"), op_in(server, "rms_norm")
        check_tokens_are_logged(server, NUM_TOKENS * len(TOKENS))
        (line,) = lines_with(server, "overrides forward_cuda of rms_norm (RMSNorm)")
        assert " WARNING " in line and "the platform 'cpu' does not call" in line
        assert lines_with(server, "overrides forward_native") == []
        pids = server.get("/v1/plugins").json()["pids"]
    assert sorted(silu) == sorted(norm) == ["worker 0", "worker 1"]
    for rank, row in enumerate(silu[f"worker {rank}"] for rank in (0, 1)):
        assert (row["implementation"], row["built"]) == ("counting.op:Counting", LAYERS)
        assert counted[rank]["rank"] == rank
        assert counted[rank]["calls"] == row["calls"] >= LAYERS * NUM_TOKENS
    models = tour.trace("ranks", "model")
    assert {each["pid"] for each in models} == {pids["worker 0"], pids["worker 1"]}
    for model in models:
        assert model["class"] == f"{MODEL_MODULE}:ToyLlamaForCausalLM"
        assert (model["norms"], model["marked"]) == (2 * LAYERS + 1, 2 * LAYERS + 1)
    workers = ["worker_process", "worker_process"]
    assert tour.registered("ranks") == ["front", "inspector", "process", *workers]
    assert len({each["pid"] for each in tour.trace("ranks", "register")}) == 5
    assert tour.importers("ranks", MODEL_MODULE) == ["inspector", *workers]
    assert tour.importers("ranks", "vllm_toy_plugin.ops") == tour.registered("ranks")


@pytest.mark.checklist(35, 47, 110, 113)
def test_a_space_in_the_list_is_told_by_name_and_what_it_leaves_out_is_missing(
    tour: Tour, tiny_llama: Path
) -> None:
    listed = tour.environment("space", "toy_stat_logger, toy_endpoint, toy_register")
    done = run_command(["run", str(tiny_llama), *RENAMED], env=listed)
    assert done.returncode == 78
    for entry in ("toy_endpoint", "toy_register"):
        (line,) = [each for each in done.stderr.splitlines() if f"the entry ' {entry}'" in each]
        assert " WARNING " in line and f"write '{entry}'" in line
    last = done.stderr.splitlines()[-1]
    assert "ToyLlamaForCausalLM" in last and "are not supported for now" in last
    assert f"{TOY} is blocked by VLLM_PLUGINS" in last


@pytest.mark.checklist(68, 69)
@pytest.mark.parametrize("off", ["-RMSNorm", "-rms_norm"])
def test_an_op_that_is_switched_on_and_off_is_an_error(off: str, tiny_llama: Path) -> None:
    listed = json.dumps({"custom_ops": ["+RMSNorm", off]})
    done = run_command(["run", str(tiny_llama), "--compilation-config", listed])
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert f"custom_ops has both +RMSNorm and {off}; expected one of them" in last
