"""What endpoint plugins are given: the engine in prompts, and the server's arguments."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request

import scripted_engine
from hookserve.engine.async_llm import AsyncLLM
from hookserve.engine.errors import (
    EngineDeadError,
    InvalidRequestError,
    NotServedError,
    QueueFullError,
)
from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.engine.prompt_client import PromptClient
from hookserve.engine.sampling_params import SamplingParams
from hookserve.plugins_builtin.vllm_compat.endpoints import EndpointEntry
from hookserve.server.secret import Secret
from scripted_engine import say

PARAMS = SamplingParams(max_tokens=8)
DEFAULTS = AsyncLLM.__init__.__kwdefaults__ or {}


class Admin:
    """Shaped as the ecosystem's own sample: a route that asks the engine's workers."""

    name = "admin"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        @app.get("/v1/admin/scheduler_config")
        async def scheduler_config(raw_request: Request) -> dict[str, Any]:
            engine = raw_request.app.state.admin_engine
            if engine is None:
                raise HTTPException(status_code=503, detail="there is no engine")
            return {"found": await engine.collective_rpc("get_scheduler_config", timeout=5.0)}

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        self.engine: Any = engine_client
        self.state, self.args = state, args
        state.admin_engine = engine_client


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def plugin(admin: Admin) -> Any:
    return EndpointEntry("admin", lambda: admin)


@pytest.mark.checklist(98, 99, 101)
def test_a_route_calls_the_workers_and_their_refusal_is_its_error(
    serve_script: Any, plugin: Any, admin: Admin
) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            state = served.runtime.app.state
            assert admin.state is state and state.args is admin.args
            assert (state.engine_client, state.vllm_config) == (
                admin.engine,
                served.runtime.vllm_config,
            )
            served.engine.answers["get_scheduler_config"] = {"max_num_seqs": 3}
            reply = await served.http.get("/v1/admin/scheduler_config")
            assert reply.json() == {"found": {"max_num_seqs": 3}}
            served.engine.answers.clear()
            reply = await served.http.get("/v1/admin/scheduler_config")
            assert reply.json()["error"]["code"] == "plugin_error"
            with pytest.raises(RuntimeError, match="no such method"):
                await admin.engine.collective_rpc("get_scheduler_config")

    asyncio.run(run())


def test_prompts_become_outputs(serve_script: Any, plugin: Any, admin: Admin) -> None:
    async def run() -> None:
        async with serve_script(say("ab!"), plugins=[plugin]) as served:
            engine = admin.engine
            assert isinstance(engine, PromptClient)
            outputs = [each async for each in engine.generate("hi", PARAMS, "mine")]
            assert [each.outputs[0].text for each in outputs] == ["a", "ab", "ab!"]
            assert (outputs[-1].finished, outputs[-1].request_id) == (True, "mine")
            assert outputs[-1].prompt_token_ids == list(b"hi")
            given = {"prompt_token_ids": [104, 105]}
            named = engine.generate(given, PARAMS, "b", prompt_text="shown")
            assert [each.prompt async for each in named] == ["shown"] * 3
            assert served.engine.requests[-1].prompt_token_ids == [104, 105]
            with pytest.raises(InvalidRequestError, match="128 tokens"):
                await anext(engine.generate("x" * 200, PARAMS, "long"))
            assert engine.get_num_unfinished_requests() == 0
            assert engine.get_tokenizer().encode("a", False) == [97]

    asyncio.run(run())


def test_a_request_is_aborted_by_its_name(serve_script: Any, plugin: Any, admin: Admin) -> None:
    async def run() -> None:
        async with serve_script(say("abc"), plugins=[plugin]) as served:
            served.engine.gate.clear()
            outputs = admin.engine.generate("hi", PARAMS, "mine")
            first = asyncio.create_task(anext(outputs))
            while not served.engine.requests:
                await asyncio.sleep(0.001)
            await admin.engine.abort(["mine", "unknown"])
            aborted = await first
            assert aborted.outputs[0].finish_reason == "abort"
            with pytest.raises(TimeoutError):
                admin.engine._client._in_flight["other"] = None
                await admin.engine.wait_for_requests_to_drain(timeout=0.01)
            del admin.engine._client._in_flight["other"]
            await admin.engine.wait_for_requests_to_drain()

    asyncio.run(run())


def test_an_abort_says_nothing_of_what_has_ended(
    serve_script: Any, plugin: Any, admin: Admin
) -> None:
    """Of two sequences one ends at once, and the other one never."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        ended = "length" if not lasting else None
        lasting.append(request.request_id)
        return [EngineCoreOutput(request.request_id, [97], ended)]

    lasting: list[str] = []

    async def run() -> None:
        async with serve_script(script, plugins=[plugin]):
            two, seen = SamplingParams(n=2, max_tokens=8), []
            async for output in admin.engine.generate("hi", two, "mine"):
                (sequence,) = output.outputs
                seen.append((sequence.index, sequence.finish_reason))
                if len(seen) == 2:
                    await admin.engine.abort("mine")
            assert seen == [(0, "length"), (1, None), (1, "abort")]

    asyncio.run(run())


def test_how_the_engine_is(
    serve_script: Any, plugin: Any, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            engine = admin.engine
            assert (engine.is_running, engine.is_stopped, engine.errored) == (True, False, False)
            assert engine.vllm_config is served.runtime.client.vllm_config
            assert engine.model_config.max_model_len == 128
            await engine.check_health()
            assert await engine.get_supported_tasks() == ("generate",)
            assert [await engine.is_sleeping(), await engine.is_paused()] == [False, False]
            assert await engine.is_tracing_enabled() is False
            assert engine.get_kv_event_sources() == {}
            assert await engine.reset_prefix_cache() is True
            assert served.engine.num_resets == 1
            monkeypatch.setattr("hookserve.engine.engine_client.MAX_UNFINISHED_REQUESTS", 3)
            engine.check_admission(3)
            with pytest.raises(QueueFullError):
                engine.check_admission(n=4)
            logged: list[bool] = []
            monkeypatch.setattr(served.runtime.loggers, "log", lambda: logged.append(True))
            await engine.do_log_stats()
            assert logged == [True]
            served.runtime.client.mark_dead(EngineDeadError("it fell over"))
            assert engine.errored and str(engine.dead_error) == "it fell over"
            with pytest.raises(EngineDeadError, match="it fell over"):
                await engine.check_health()
            with pytest.raises(EngineDeadError, match="it fell over"):
                await anext(engine.generate("hi", PARAMS, "mine"))

    asyncio.run(run())


ABSENT = [
    "add_lora",
    "remove_lora",
    "list_loras",
    "pin_lora",
    "sleep",
    "wake_up",
    "release_kv_cache_memory",
    "pause_generation",
    "resume_generation",
    "reset_mm_cache",
    "reset_encoder_cache",
    "start_profile",
    "stop_profile",
    "update_weights",
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "start_weight_update",
    "start_draft_weight_update",
    "finish_weight_update",
    "update_weight_version",
    "get_weight_version",
    "compute_weight_checksums",
    "handle_fault",
    "get_status",
    "scale_elastic_ep",
    "notify_kv_transfer_request_rejected",
]


def test_what_it_cannot_do_raises_and_says_so(serve_script: Any, plugin: Any, admin: Admin) -> None:
    async def run() -> None:
        async with serve_script(say("ab"), plugins=[plugin]):
            engine = admin.engine
            for name in ABSENT:
                with pytest.raises(NotServedError, match=f"^{name}: .{{20}}"):
                    await getattr(engine, name)()
            with pytest.raises(NotImplementedError, match=r"^encode: no pooling model"):
                engine.encode("a", None, "id")
            with pytest.raises(NotServedError, match=r"^shutdown: the engine is the server's"):
                engine.shutdown(timeout=1.0)
            with pytest.raises(NotServedError, match=r"^reset_prefix_cache: requests that run"):
                await engine.reset_prefix_cache(reset_running_requests=True)
            with pytest.raises(NotServedError, match=r"^generate: lora_request has no meaning"):
                await anext(engine.generate("a", PARAMS, "id", lora_request=object()))

    asyncio.run(run())


@pytest.mark.checklist(99)
def test_arguments_have_the_ecosystems_names_and_no_keys(
    serve_script: Any, plugin: Any, admin: Admin
) -> None:
    settings = {"host": "::1", "port": 1234, "api_key": (Secret("k"),), "root_path": "/llm"}

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[plugin], settings=settings):
            args = admin.args
        assert type(args) is Namespace
        assert (args.host, args.port, args.root_path, args.uds) == ("::1", 1234, "/llm", None)
        assert (args.model, args.served_model_name) == ("m", ["m", "org/alias"])
        assert (args.max_model_len, args.dtype, args.tensor_parallel_size) == (128, "float32", 1)
        assert (args.allowed_origins, args.middleware, args.disable_log_stats) == ([], [], False)
        assert not hasattr(args, "api_key") and not hasattr(args, "admin_key")
        assert "Secret" not in repr(args)
        with pytest.raises(AttributeError):
            _ = args.no_such_argument

    asyncio.run(run())


@pytest.mark.usefixtures("vllm_facade")
def test_the_classes_are_served_under_the_ecosystems_names(
    serve_script: Any, plugin: Any, admin: Admin
) -> None:
    from vllm.engine.protocol import EngineClient
    from vllm.plugins.endpoint_plugins import interface
    from vllm.v1.engine.async_llm import AsyncLLM

    async def run() -> None:
        async with serve_script(say("ab"), plugins=[plugin]):
            assert isinstance(admin.engine, EngineClient)

    asyncio.run(run())
    assert isinstance(admin, interface.EndpointPlugin)
    assert not isinstance(object(), interface.EndpointPlugin)
    assert issubclass(AsyncLLM, EngineClient)
    with pytest.raises(ImportError):
        from vllm.entrypoints.launchers.api_server.entry import run_server  # noqa: F401


@pytest.mark.usefixtures("vllm_facade")
@pytest.mark.checklist(100)
def test_an_application_of_ones_own_gets_the_routes_too(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tests of plugins do, without an engine."""
    from vllm.plugins.endpoint_plugins import (
        attach_endpoint_plugins,
        init_endpoint_plugins_state,
    )

    made = "hookserve.plugins_builtin.vllm_compat.own_application.make_endpoints"
    monkeypatch.setattr(made, lambda tasks: [admin])
    app = FastAPI()
    app.add_api_route("/v1/admin/scheduler_config", lambda: "the core's", methods=["POST"])
    assert "get" not in app.openapi()["paths"]["/v1/admin/scheduler_config"]
    attach_endpoint_plugins(app, ("generate",))

    async def run() -> None:
        await init_endpoint_plugins_state(None, app.state, Namespace())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            reply = await http.get("/v1/admin/scheduler_config")
            other = await http.post("/v1/admin/scheduler_config")
        assert (reply.status_code, reply.json()) == (503, {"detail": "there is no engine"})
        assert other.json() == "the core's"
        assert "get" in app.openapi()["paths"]["/v1/admin/scheduler_config"]

    asyncio.run(run())


@pytest.mark.usefixtures("vllm_facade")
def test_an_engine_lives_as_long_as_its_block(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.openai.api_server import (
        build_async_engine_client,
        build_async_engine_client_from_engine_args,
    )

    command = (sys.executable, "-P", scripted_engine.__file__, "plain")
    monkeypatch.setattr(AsyncLLM.__init__, "__kwdefaults__", {**DEFAULTS, "command": command})

    async def run() -> None:
        args = Namespace(model=str(tiny_llama), port=1, no_such_field=2)
        async with build_async_engine_client(args) as engine:
            outputs = [each async for each in engine.generate([1], PARAMS, "r")]
            assert list(outputs[-1].outputs[0].token_ids) == [66, 67]
        assert engine.is_stopped
        with pytest.raises(ValueError, match="client_config"):
            async with build_async_engine_client_from_engine_args(
                AsyncEngineArgs(model=str(tiny_llama)), client_config={}
            ):
                pass

    asyncio.run(run())
