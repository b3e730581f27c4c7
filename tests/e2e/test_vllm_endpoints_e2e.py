"""An endpoint plugin as it is written for vLLM, in a real server: routes, engine, workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect

from harness import RunningServer
from plugin_folder import install_plugin

KEY = {"authorization": "Bearer k"}
ENDPOINT = """
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


    class Extension:
        def get_scheduler_config(self):
            return self.vllm_config.scheduler_config.max_num_seqs
"""


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    site = tmp_path_factory.mktemp("site")
    install_plugin(
        site,
        "admin-plugin",
        {"admin_plugin": ENDPOINT},
        groups={
            "vllm.endpoint_plugins": {
                "admin": "admin_plugin:Admin",
                "other": "no_such_module:Other",
            }
        },
    )
    args = [str(tiny_llama), "--served-model-name", "m", "--api-key", "k", "--max-num-seqs", "5"]
    args += ["--worker-extension-cls", "admin_plugin.Extension"]
    env = {"PYTHONPATH": str(site), "VLLM_PLUGINS": "admin"}
    with RunningServer([*args, "--kv-cache-memory-bytes", str(64 << 20)], env=env) as running:
        yield running


@pytest.mark.checklist(93, 97, 98, 99, 101, 103, 104, 105, 106)
def test_it_does_its_job(server: RunningServer) -> None:
    assert server.get("/v1/admin/scheduler_config").status_code == 401
    found = server.get("/v1/admin/scheduler_config", headers=KEY)
    assert found.json() == {"found": [5]}
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
