"""Packages for vLLM beside one another in a server with two ranks: the toy, one that counts an op's
calls, one that wraps the making of the configuration, and one whose endpoint does all that they do.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from harness import RunningServer
from plugin_folder import install_plugin
from tiny_llama import LAYERS
from vllm_tour import (
    ADMIN_KEY,
    MODEL_MODULE,
    NUM_TOKENS,
    PLUGINS,
    RENAMED,
    SMALL,
    Tour,
    check_tokens_are_logged,
    complete,
    lines_with,
    op_in,
    say_plainly,
)

KEY = {"authorization": "Bearer k"}
TOKENS = [[1, 2, 3], [40, 50], [7 * at for at in range(30)]]
DECIDER = "deciding:vllm.general_plugins:deciding"

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

    def get_scheduler_config(self):
        return self.vllm_config.scheduler_config.max_num_seqs
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
DECIDING = """
from vllm.logger import init_logger

logger = init_logger("vllm.deciding")


def register():
    from vllm.config import get_current_vllm_config_or_none
    from vllm.engine.arg_utils import EngineArgs

    logger.info("registered, without a model: %s", get_current_vllm_config_or_none())
    make = EngineArgs.create_engine_config

    def create_engine_config(self, *args, **kwargs):
        self.enforce_eager = True
        config = make(self, *args, **kwargs)
        config.scheduler_config.scheduler_cls = "deciding_scheduler.DecidingScheduler"
        config.additional_config["mark"] = 7
        return config

    EngineArgs.create_engine_config = create_engine_config
"""
SCHEDULER = """
from vllm.v1.core.sched.scheduler import Scheduler

from deciding import logger


class DecidingScheduler(Scheduler):
    def __init__(self, vllm_config, *args, **kwargs):
        super().__init__(vllm_config, *args, **kwargs)
        logger.info("scheduling with mark %s", vllm_config.additional_config["mark"])
"""
ADMIN = """
    from fastapi import FastAPI, HTTPException, Request, WebSocket
    from vllm.engine.protocol import EngineClient
    from vllm.logger import init_logger
    from vllm.sampling_params import SamplingParams

    logger = init_logger("vllm.admin_plugin")


    class Admin:
        name = "admin"
        required_tasks = ("generate",)

        def attach_router(self, app: FastAPI):
            @app.get("/v1/admin/scheduler_config")
            async def scheduler_config(raw_request: Request):
                engine = raw_request.app.state.admin_engine
                if engine is None:
                    raise HTTPException(status_code=503, detail="no engine")
                return {"found": await engine.collective_rpc("get_scheduler_config")}

            @app.get("/v1/models")
            async def models(raw_request: Request):
                return {"mine": raw_request.app.state.admin_args.served_model_name}

            @app.get("/admin/generate")
            async def generate(raw_request: Request, count: int):
                params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
                outputs = raw_request.app.state.admin_engine.generate(
                    {"prompt_token_ids": [1, 2, 3]}, params, "admin-1"
                )
                async for output in outputs:
                    last = output
                (sequence,) = last.outputs
                count = len(sequence.token_ids)
                return {"text": sequence.text, "count": count, "finished": last.finished}

            @app.websocket("/admin/echo")
            async def echo(websocket: WebSocket):
                await websocket.accept()
                await websocket.send_text("echo " + await websocket.receive_text())

            @app.on_event("startup")
            async def start():
                logger.info("admin is up")

            app.router.add_event_handler("shutdown", lambda: logger.info("admin is down"))

        async def init_state(self, engine_client, state, args):
            assert isinstance(engine_client, EngineClient)
            state.admin_engine, state.admin_args = engine_client, args
"""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> Tour:
    toy = source_root / "tests" / "toys" / "vllm_toy_plugin"
    tour = Tour(tmp_path_factory.mktemp("ranks"), toy)
    general, endpoints = "vllm.general_plugins", "vllm.endpoint_plugins"
    install_plugin(
        tour.site,
        "counting-dist",
        {"counting": COUNTING},
        groups={
            general: {"count": "counting:register"},
            endpoints: {"calls": "counting.route:Calls"},
        },
        files={"counting/op.py": COUNTING_OP, "counting/route.py": COUNTING_ROUTE},
    )
    install_plugin(
        tour.site,
        "deciding",
        {"deciding": DECIDING},
        groups={general: {"deciding": "deciding:register"}},
        files={"deciding_scheduler.py": SCHEDULER},
    )
    admin = {"admin": "admin_plugin:Admin", "other": "no_such_module:Other"}
    install_plugin(tour.site, "admin-plugin", {"admin_plugin": ADMIN}, groups={endpoints: admin})
    return tour


@pytest.fixture(scope="module")
def server(tour: Tour, tiny_llama: Path) -> Iterator[RunningServer]:
    args = [str(tiny_llama), *RENAMED, "--compilation-config", '{"custom_ops": ["+RMSNorm"]}']
    args += ["--tensor-parallel-size", "2", "--worker-extension-cls", "counting.op.Counted"]
    args += ["--served-model-name", "m", "--api-key", "k", "--admin-key", "a"]
    args += ["--max-num-seqs", "5", *SMALL]
    env = tour.environment("ranks", f"{PLUGINS},count,calls,deciding,admin")
    with RunningServer(args, env=env) as running:
        yield running


@pytest.mark.checklist(14, 16, 30, 38, 49, 51, 55, 66, 67, 85, 101, 118, 130)
def test_1_each_worker_has_the_parts_of_the_packages(
    tour: Tour, server: RunningServer, tiny_llama: Path
) -> None:
    assert complete(server, TOKENS) == say_plainly(tiny_llama, TOKENS)
    counted = server.get("/v1/calls", headers=KEY).json()
    silu, norm = op_in(server, "silu_and_mul"), op_in(server, "rms_norm")
    check_tokens_are_logged(server, NUM_TOKENS * len(TOKENS))
    (line,) = lines_with(server, "overrides forward_cuda of rms_norm (RMSNorm)")
    assert " WARNING " in line and "the platform 'cpu' does not call" in line
    assert lines_with(server, "overrides forward_native") == []
    pids = server.get("/v1/plugins", headers=ADMIN_KEY).json()["pids"]
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


@pytest.mark.checklist(14, 91)
def test_2_what_a_wrapper_decides_is_what_every_process_does(server: RunningServer) -> None:
    log = server.output()
    head = rf"^\((\w+(?: \d)?) pid=\d+\) INFO .{{14}} \[\w+\.py:\d+\] plugin {DECIDER} says: "
    registered = re.findall(head + "registered, without a model: None$", log, re.MULTILINE)
    assert sorted(registered) == ["Engine", "Front", "Worker 0", "Worker 1"]
    assert re.findall(r"^\((\w+) .* scheduling with mark 7$", log, re.MULTILINE) == ["Engine"]
    assert f"plugin {DECIDER} set enforce_eager to True (it was False)" in log
    assert f"{DECIDER} changed scheduler_config.scheduler_cls from 'default' to" in log


@pytest.mark.checklist(93, 97, 98, 99, 101, 103, 104, 105, 106)
def test_3_an_endpoint_does_its_job(server: RunningServer) -> None:
    assert server.get("/v1/admin/scheduler_config").status_code == 401
    found = server.get("/v1/admin/scheduler_config", headers=KEY)
    assert found.json() == {"found": [5, 5]}
    assert server.get("/v1/models", headers=KEY).json() == {"mine": ["m"]}
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    reply = server.post("/v1/completions", body, headers=KEY).json()
    mine = server.get("/admin/generate?count=4", headers=KEY).json()
    assert mine == {"text": reply["choices"][0]["text"], "count": 4, "finished": True}
    missing = server.get("/admin/generate", headers=KEY)
    assert (missing.status_code, missing.json()["error"]["param"]) == (422, "query.count")
    url = f"ws://127.0.0.1:{server.port}/admin/echo"
    with connect(url, additional_headers=KEY) as talk:
        talk.send("hi")
        assert talk.recv() == "echo hi"
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    lines = server.stderr.splitlines()
    for said in ("admin is up", "admin is down"):
        assert sum(said in line for line in lines) == 1
    assert any(
        "GET /v1/models: admin-plugin:vllm.endpoint_plugins:admin overrides" in line
        for line in lines
    )
    assert "no_such_module" not in server.stderr, "what is not named is not imported"
