"""``server run --single-process``: one process serves, and an engine that dies in it ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from harness import RunningServer, descendants

Start = Callable[..., RunningServer]

BODY = {"prompt": [5, 6, 7, 8], "max_tokens": 8, "ignore_eos": True}
FATAL = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from hookserve.hookspecs import Endpoint, hookimpl


class Fatal:
    def routes(self):
        return [Route("/break", self.break_the_engine)]

    async def break_the_engine(self, request):
        from hookserve.engine.core import EngineCore

        def step(self):
            raise RuntimeError("out of this world")

        EngineCore.step = step
        return PlainTextResponse("broken")


@hookimpl
def endpoint():
    return Endpoint("fatal", Fatal)
"""


def test_one_process_serves_and_ends_with_70_when_its_engine_dies(
    tiny_llama: Path, tmp_path: Path, running_server: Start
) -> None:
    plugin = tmp_path / "fatal_plugin.py"
    plugin.write_text(FATAL)
    args = [str(tiny_llama), "--single-process", "--plugin", str(plugin)]
    server = running_server(args, env={"OMP_NUM_THREADS": "1"})
    assert descendants(server.pid) == set()
    assert server.post("/v1/completions", BODY).json()["usage"]["completion_tokens"] == 8
    assert server.get("/break").text == "broken"
    reply = server.post("/v1/completions", BODY)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_dead"
    assert server.wait_exit() == 70
    assert "the engine raised RuntimeError: out of this world" in server.stderr


def test_one_process_ends_with_0_when_it_is_told_to_while_it_loads(
    tiny_llama: Path, running_server: Start
) -> None:
    server = running_server([str(tiny_llama), "--single-process"], ready=False)
    while server.status("/livez") != 200:
        assert server.process.poll() is None, server.output()
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0, server.output()
