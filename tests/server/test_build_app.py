"""``build_app``: an application that brings its own engine, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.hookspecs import HostError, current
from hookserve.server import build_app


def test_a_plugin_object_cannot_cross_to_the_engine() -> None:
    class Thing:
        pass

    with pytest.raises(ConfigError, match="Thing is an object") as caught:
        build_app(plugins=[Thing()])
    assert "single_process=True" in str(caught.value)
    with pytest.raises(HostError):
        current()


def test_the_environment_chooses_plugins_and_faults_are_logged(
    tiny_llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugin = tmp_path / "faulty_plugin.py"
    plugin.write_text("raise RuntimeError('no licence')\n")
    monkeypatch.setenv("HOOKSERVE_PLUGINS", "")
    monkeypatch.setenv("HOOKSERVE_PLUGIN", str(plugin))
    monkeypatch.setenv("HOOKSERVE_PROT", "1")
    build_app(EngineArgs(model=str(tiny_llama)))
    try:
        lines = [record.getMessage() for record in caplog.records]
        assert any("file:faulty_plugin" in line and "no licence" in line for line in lines)
        assert any("HOOKSERVE_PROT" in line for line in lines)
        with pytest.raises(ConfigError, match="already"):
            build_app(str(tiny_llama))
    finally:
        current().close()


@pytest.mark.e2e
def test_the_lifespan_starts_and_stops_the_engine(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a parser from a file, which the environment names as flags of the command do."""
    parser = tmp_path / "thoughtful_plugin.py"
    parser.write_text(
        "from hookserve.engine.text.reasoning_parser import ReasoningParser\n"
        "from hookserve.hookspecs import Named, hookimpl\n"
        "class AllIsThought(ReasoningParser):\n"
        "    def extract_reasoning(self, model_output, request):\n"
        "        return model_output, None\n"
        "    def is_reasoning_end(self, input_ids):\n"
        "        return False\n"
        "@hookimpl\n"
        "def reasoning_parser():\n"
        "    return Named('all', 'thoughtful_plugin:AllIsThought')\n"
    )
    monkeypatch.setenv("HOOKSERVE_REASONING_PARSER_PLUGIN", str(parser))
    monkeypatch.setenv("HOOKSERVE_REASONING_PARSER", "all")
    plugin = tmp_path / "greeting_plugin.py"
    plugin.write_text(
        "from starlette.responses import PlainTextResponse\n"
        "from starlette.routing import Route\n"
        "from hookserve.hookspecs import Endpoint, hookimpl\n"
        "async def greet(request):\n"
        "    return PlainTextResponse('hello')\n"
        "class Greeting:\n"
        "    def routes(self):\n"
        "        return [Route('/greet', greet)]\n"
        "@hookimpl\n"
        "def endpoint():\n"
        "    return Endpoint('greeting', Greeting)\n"
    )

    async def run() -> None:
        app = build_app(str(tiny_llama), plugins=[str(plugin)])
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            assert (await http.get("/readyz")).status_code == 503
            async with app.router.lifespan_context(app):
                assert (await http.get("/readyz")).status_code == 200
                assert (await http.get("/greet")).text == "hello"
                body = {"prompt": [5, 6], "max_tokens": 3, "ignore_eos": True}
                reply = await http.post("/v1/completions", json=body)
                assert reply.json()["usage"]["completion_tokens"] == 3
                chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
                reply = await http.post("/v1/chat/completions", json={**chat, "ignore_eos": True})
                message = reply.json()["choices"][0]["message"]
                assert (message["content"], bool(message["reasoning"])) == (None, True)
                states = {report.identity: report.state for report in app.state.plugins.describe()}
                assert states["file:greeting_plugin"] == "active"
                every = await asyncio.to_thread(app.state.plugins.describe, True)
                assert [report.process for report in every] == ["front", "engine"]
                identities = {plugin.identity for plugin in every[1].plugins}
                assert "file:greeting_plugin" in identities
            assert [report.process for report in app.state.plugins.describe(True)] == ["front"]
            assert (await http.get("/readyz")).status_code == 503

    asyncio.run(run())
    with pytest.raises(HostError):
        current()
