"""Front, engine and worker in one process: the same answers, plugins that are objects, and an end
of the engine's thread that is acted on as the end of its process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.llm import LLM
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import HostError, current, hookimpl
from hookserve.server import build_app
from hookserve.server.settings import resolve_settings

PROMPT = [5, 6, 7, 8, 9, 10]
BODY = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "temperature": 0}


class Witness:
    """One object with hooks of every role."""

    def __init__(self) -> None:
        self.roles: list[frozenset[str]] = []
        self.threads: dict[str, set[str]] = {}
        self.num_models = 0

    def saw(self, hook: str) -> None:
        self.threads.setdefault(hook, set()).add(threading.current_thread().name)

    @hookimpl
    def process_started(self, roles: Any) -> None:
        self.roles.append(roles)

    @hookimpl
    def model_loaded(self, model: Any) -> None:
        self.num_models += 1
        self.saw("model_loaded")

    @hookimpl
    def after_schedule(self, output: Any) -> None:
        self.saw("after_schedule")

    @hookimpl
    def after_step(self, batch: Any) -> None:
        self.saw("after_step")

    @hookimpl
    async def request_finished(self, record: Any) -> None:
        self.saw("request_finished")


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
        app.router.lifespan_context(app),
    ):
        yield http


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "engine"]


@pytest.mark.e2e
def test_one_process_gives_the_same_answers_to_plugins_that_are_objects(tiny_llama: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny_llama)) as llm:
        (alone,) = llm.generate({"prompt_token_ids": PROMPT}, params)
        expected = alone.outputs[0].text
    witness = Witness()

    async def run() -> None:
        app = build_app(str(tiny_llama), plugins=[witness], single_process=True)
        async with serving(app) as http:
            assert len(engine_threads()) == 1
            assert (await http.get("/readyz")).status_code == 200
            replies = [http.post("/v1/completions", json=BODY) for _ in range(3)]
            for reply in await asyncio.gather(*replies):
                assert reply.json()["choices"][0]["text"] == expected
            streamed = await http.post("/v1/completions", json={**BODY, "stream": True})
            events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
            texts = [json.loads(event)["choices"][0]["text"] for event in events]
            assert "".join(texts) == expected
            assert len(texts) > 3
            client = app.state.engine_client
            left = client.generate(PROMPT, params, "left")
            await anext(left)
            await left.aclose()
            assert client.get_num_unfinished_requests() == 0
            processes = await asyncio.to_thread(app.state.plugins.describe, True)
            assert [process.process for process in processes] == ["front"]

    asyncio.run(run())
    assert engine_threads() == []
    assert witness.roles == [frozenset({"front", "engine", "worker"})]
    assert witness.num_models == 1
    assert witness.threads["model_loaded"] == {"engine"}
    assert witness.threads["after_schedule"] == witness.threads["after_step"] == {"engine"}
    assert witness.threads["request_finished"] == {threading.main_thread().name}
    with pytest.raises(HostError):
        current()


class Broken:
    @hookimpl
    def model_loaded(self) -> None:
        raise RuntimeError("not this model")


@pytest.mark.e2e
def test_a_plugin_that_fails_while_the_model_loads_is_out_and_the_thread_starts_again(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()

    async def run() -> None:
        app = build_app(str(tiny_llama), plugins=[Broken(), witness], single_process=True)
        async with serving(app) as http:
            assert (await http.post("/v1/completions", json=BODY)).status_code == 200
            states = {report.identity: report.state for report in app.state.plugins.describe()}
            assert states["object:Broken"] == "out"
            assert states["object:Witness"] == "active"
            assert len(engine_threads()) == 1

    asyncio.run(run())
    assert witness.num_models == 2
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("object:Broken" in line and "starts again without it" in line for line in lines)


@pytest.mark.e2e
def test_the_end_of_the_thread_is_the_death_of_the_engine(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.engine.core import EngineCore

    def fall(self: Any) -> None:
        raise RuntimeError("nobody home")

    async def run() -> None:
        app = build_app(str(tiny_llama), single_process=True)
        async with serving(app) as http:
            monkeypatch.setattr(EngineCore, "step", fall)
            reply = await http.post("/v1/completions", json=BODY)
            assert reply.status_code == 503
            assert "nobody home" in str(app.state.engine_client.dead_error)
            assert (await http.get("/health")).status_code == 503

    asyncio.run(run())
    assert engine_threads() == []


STUCK = """
import threading, time
from hookserve.engine.running_engine import ENGINE_THREAD
from hookserve.server.event_loop import leave_if_stuck
threading.Thread(target=time.sleep, args=(60,), name=ENGINE_THREAD, daemon=True).start()
leave_if_stuck(75)
"""


def test_a_thread_that_still_computes_is_not_torn_down_with_the_interpreter() -> None:
    ended = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True)
    assert ended.returncode == 75
    assert "left behind: engine" in ended.stderr


def test_one_process_is_one_rank(tiny_llama: Path) -> None:
    args = EngineArgs(model=str(tiny_llama), tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="--single-process: the executor mp"):
        build_app(args, single_process=True)
    with pytest.raises(HostError):
        current()


def test_the_settings_may_say_it_too() -> None:
    settings = resolve_settings({"single_process": True}, {})
    assert settings.roles == ("front", "engine", "worker")
    assert resolve_settings({}, {}).roles == ("front",)
    by_env = resolve_settings({}, {"HOOKSERVE_SINGLE_PROCESS": "yes"})
    assert by_env.server.single_process
    other = msgspec.structs.replace(by_env.server, single_process=False)
    assert msgspec.structs.replace(by_env, server=other).roles == ("front",)
