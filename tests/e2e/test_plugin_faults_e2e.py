"""A real server with a plugin that does its worst: it serves on, and it ends when it is told to."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from harness import RunningServer, wait_until

PLUGIN = """
import asyncio, sys, threading, time
from starlette.responses import StreamingResponse
from starlette.routing import Route
from hookserve.hookspecs import Endpoint, hookimpl

async def leave(request):
    async def pieces():
        yield b"one"
        sys.exit(3)
    return StreamingResponse(pieces())

async def deaf(request):
    print("deaf is under way", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass

def asleep(request):
    threading.Thread(target=time.sleep, args=(3600,), name="sleeper").start()
    print("asleep is under way", file=sys.stderr, flush=True)
    time.sleep(3600)

class Routes:
    def routes(self):
        return [Route("/leave", leave), Route("/deaf", deaf), Route("/asleep", asleep)]

@hookimpl
def endpoint():
    return Endpoint("worst", Routes)
"""


def test_a_plugin_stops_the_server_neither_from_serving_nor_from_ending(
    running_server: Callable[..., RunningServer], tiny_llama: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "worst.py"
    plugin.write_text(PLUGIN)
    server = running_server([str(tiny_llama), "--plugin", str(plugin)])
    try:
        server.get("/leave")
    except httpx.TransportError:
        pass  # The reply breaks off, as it must.
    else:
        raise AssertionError("the reply looks complete")
    assert "worst" in server.stderr and "SystemExit(3)" in server.stderr
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200

    def hang(path: str) -> None:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(server.base_url + path, timeout=60, trust_env=False)

    threads = [threading.Thread(target=hang, args=(path,)) for path in ("/deaf", "/asleep")]
    for thread in threads:
        thread.start()
    for name in ("deaf", "asleep"):
        wait_until(lambda name=name: f"{name} is under way" in server.stderr, 20, name)
    server.signal(signal.SIGTERM)
    assert server.wait_exit(30) == 0, server.output()
    for thread in threads:
        thread.join(10)
    assert "'/deaf' of plugin file:worst did not end when cancelled" in server.stderr
    assert "left behind: AnyIO worker thread, sleeper" in server.stderr
    assert "Traceback" not in server.stderr.split("stopping", 1)[1]
