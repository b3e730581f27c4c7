"""What a plugin's routes, streams and tasks can do wrong while the server serves: that request
fails, the plugin is named, and everybody else is served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from harness import run_command
from hookserve.hookspecs import Endpoint, RequestRecord, hookimpl
from hookserve.server import event_loop
from hookserve.server.plugin_tasks import PluginExit, contain
from http_front import exchange, listening, post
from scripted_engine import say

FAULTS: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    lambda: KeyboardInterrupt(),
    lambda: asyncio.CancelledError(),
    lambda: ZeroDivisionError(),
]
NAMES = ["SystemExit", "KeyboardInterrupt", "CancelledError", "ZeroDivisionError"]


class Faulty:
    """A plugin with a route for each place in which code of its own runs."""

    def __init__(self, fault: Callable[[], BaseException]) -> None:
        self.fault = fault
        self.tasks: list[asyncio.Task[None]] = []

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("faulty", lambda: self)

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        raise self.fault()

    def routes(self) -> list[Any]:
        return [
            Route("/route", self.route),
            Route("/thread", self.in_thread),
            Route("/first", self.before_first_chunk),
            Route("/later", self.after_first_chunk),
            Route("/iterator", self.iterator),
            Route("/background", self.background),
            Route("/task", self.task),
            Route("/awaited", self.awaited_task),
            Mount("/layer", routes=[Route("/x", self.fine)], middleware=[Middleware(self.layer)]),
        ]

    async def route(self, request: Request) -> None:
        raise self.fault()

    def in_thread(self, request: Request) -> None:
        raise self.fault()

    async def fine(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("fine")

    async def _raise(self) -> None:
        raise self.fault()

    async def before_first_chunk(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            raise self.fault()
            yield b""

        return StreamingResponse(pieces())

    async def after_first_chunk(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"one"
            raise self.fault()

        return StreamingResponse(pieces())

    async def iterator(self, request: Request) -> StreamingResponse:
        def pieces() -> Iterator[bytes]:
            yield b"one"
            raise self.fault()

        return StreamingResponse(pieces())

    async def background(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("done", background=BackgroundTask(self._raise))

    async def task(self, request: Request) -> PlainTextResponse:
        self.tasks.append(asyncio.create_task(self._raise()))
        await asyncio.sleep(0)
        return PlainTextResponse("done")

    async def awaited_task(self, request: Request) -> None:
        await asyncio.create_task(self._raise())

    def layer(self, app: Any) -> Any:
        async def call(scope: Any, receive: Any, send: Any) -> None:
            raise self.fault()

        return call


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()


WHERE = {
    "/route": b"HTTP/1.1 500 ",
    "/thread": b"HTTP/1.1 500 ",
    "/awaited": b"HTTP/1.1 500 ",
    "/layer/x": b"HTTP/1.1 500 ",
    "/first": b"HTTP/1.1 200 ",
    "/later": b"HTTP/1.1 200 ",
    "/iterator": b"HTTP/1.1 200 ",
    "/background": b"HTTP/1.1 200 ",
    "/task": b"HTTP/1.1 200 ",
}


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_what_a_plugin_raises_fails_its_request_and_nothing_else(
    serve_script: Any, fault: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Faulty(fault)

    async def run() -> None:
        async with serve_script(say("a"), plugins=[plugin]) as served:
            with contain():
                async with listening(served.runtime) as port:
                    for path, status in WHERE.items():
                        caplog.clear()
                        reply = await exchange(port, get(path))
                        assert reply.startswith(status), (path, reply)
                        if status == b"HTTP/1.1 500 ":
                            assert b"object:Faulty failed with " in reply
                        if path in ("/first", "/later", "/iterator"):
                            assert not reply.endswith(b"0\r\n\r\n"), "it looks complete"
                        if path != "/task":
                            errors = [r for r in caplog.records if r.levelname == "ERROR"]
                            assert any("object:Faulty" in r.getMessage() for r in errors), path
                        after = await exchange(port, post(b'{"prompt": "a"}'))
                        assert after.startswith(b"HTTP/1.1 200 ")
            await asyncio.gather(*plugin.tasks, return_exceptions=True)

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    except (SystemExit, KeyboardInterrupt):
        raise AssertionError("the plugin stopped the event loop") from None
    (own,) = plugin.tasks
    if fault is not FAULTS[3]:
        assert isinstance(own.exception(), PluginExit)


@pytest.mark.parametrize(
    ("answer", "status", "kind"),
    [
        (lambda: None, 500, "TypeError"),
        (lambda: {"a": 1}, 500, "TypeError"),
        (lambda: "text", 500, "TypeError"),
        (lambda: silent, 500, "RuntimeError"),
        (lambda: half, 200, None),
    ],
)
def test_what_is_no_reply_is_the_plugins_fault(
    serve_script: Any,
    answer: Callable[[], Any],
    status: int,
    kind: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd(Faulty):
        async def route(self, request: Request) -> Any:
            return answer()

    async def run() -> None:
        async with (
            serve_script(say("a"), plugins=[Odd(FAULTS[0])]) as served,
            listening(served.runtime) as port,
        ):
            reply = await exchange(port, get("/route"))
            assert reply.startswith(b"HTTP/1.1 %d " % status)
            if kind is not None:
                assert f"object:Odd failed with {kind}".encode() in reply

    asyncio.run(run())
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "object:Odd" in line


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers nothing."""


async def half(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})


def test_a_task_that_is_really_cancelled_ends_so(serve_script: Any) -> None:
    class Waiting(Faulty):
        async def task(self, request: Request) -> PlainTextResponse:
            self.tasks.append(asyncio.create_task(asyncio.sleep(60)))
            return PlainTextResponse("done")

    async def run() -> None:
        plugin = Waiting(FAULTS[0])
        async with serve_script(say("a"), plugins=[plugin]) as served:
            with contain():
                assert (await served.http.get("/task")).text == "done"
                plugin.tasks[0].cancel()
                with pytest.raises(asyncio.CancelledError):
                    await plugin.tasks[0]

    asyncio.run(run())


# -- the end ---------------------------------------------------------------------------------------


def test_a_task_that_swallows_its_cancellation_does_not_keep_the_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_loop, "END_BUDGET_S", 0.1)
    ends = threading.Event()
    tasks = []

    async def deaf() -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def work() -> int:
        tasks.append(asyncio.create_task(deaf(), name="/x of plugin deaf"))
        await asyncio.sleep(0)
        return 7

    try:
        assert event_loop.run_to_end(work()) == 7
        assert "/x of plugin deaf did not end" in caplog.text
    finally:
        ends.set()
        loop = tasks[0].get_loop()
        loop.run_until_complete(tasks[0])
        loop.close()


def test_a_path_cannot_write_lines_of_its_own_into_the_log(
    serve_script: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("failing", lambda: self)

        def routes(self) -> list[Route]:
            return [Route("/fails/{name}", self.fail)]

        async def fail(self, request: Request) -> None:
            raise ZeroDivisionError

    async def run() -> None:
        async with (
            serve_script(say("a"), plugins=[Failing()]) as served,
            listening(served.runtime) as port,
        ):
            path = "/fails/a%0aINFO all is well%1b[2J".replace(" ", "%20")
            assert (await exchange(port, get(path))).startswith(b"HTTP/1.1 500 ")
            # The same where it is the server itself that fails.
            monkeypatch.setattr("hookserve.server.owned_route.is_refused", lambda *given: 1 / 0)
            assert (await exchange(port, get(path))).startswith(b"HTTP/1.1 500 ")

    asyncio.run(run())
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 2 and not any("\n" in line or "\x1b" in line for line in lines)


class Stubborn:
    """A plugin with an endpoint whose coroutines swallow their cancellation."""

    def __init__(self) -> None:
        self.is_over = False

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("stubborn", lambda: self)

    def routes(self) -> list[Route]:
        return [Route("/stubborn", lambda request: PlainTextResponse("here"))]

    async def init_state(self, client: Any, state: Any, settings: Any) -> None:
        while not self.is_over:
            with contextlib.suppress(BaseException):
                await asyncio.sleep(0.01)

    async def shutdown(self) -> None:
        await self.init_state(None, None, None)


def test_an_endpoint_that_swallows_its_cancellation_is_left_alone(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start it is not served then, and at the end nobody waits for it."""
    plugin = Stubborn()
    plugin.is_over = True

    async def run() -> None:
        hooks = {"startup_hook_timeout_s": 0.2}
        async with serve_script(say("a"), plugins=[plugin], hooks=hooks) as served:
            runtime = served.runtime
            assert (await served.http.get("/stubborn")).text == "here"
            plugin.is_over = False
            await runtime.endpoints.shutdown()
            client = runtime.serving.prompt_client
            await runtime.endpoints.init_state(client, runtime.app.state, runtime.settings)
            assert (await served.http.get("/stubborn")).status_code == 404
            plugin.is_over = True
            await asyncio.sleep(0.05)  # what was left alone ends before its event loop does

    monkeypatch.setattr("hookserve.server.endpoint_set.SHUTDOWN_BUDGET_S", 0.05)
    asyncio.run(asyncio.wait_for(run(), 10))
    (late,) = [r.getMessage() for r in caplog.records if "shutdown of endpoint" in r.getMessage()]
    assert "object:Stubborn" in late and "no end within 0.05 s" in late


def test_an_exit_in_a_callback_is_told_and_the_work_is_cleaned_up() -> None:
    cleaned = []

    async def work() -> int:
        try:
            asyncio.get_running_loop().call_soon(sys.exit, 0)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(1)
        return 0

    with pytest.raises(event_loop.LoopStoppedError, match=r"sys.exit\(0\)") as caught:
        event_loop.run_to_end(work())
    assert caught.value.exit_code == 70
    assert cleaned == [1]


def test_a_thread_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import logging, threading
        from hookserve.server.event_loop import leave_if_stuck
        logging.basicConfig()
        threading.Thread(target=threading.Event().wait, name="sleeper").start()
        leave_if_stuck(9)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 9
    assert "left behind: sleeper" in done.stderr


RUNAWAY = """
import threading
from hookserve.hookspecs import hookimpl

threading.Thread(target=threading.Event().wait, name="runaway").start()

@hookimpl
def hf_config():
    pass
"""


@pytest.mark.parametrize(
    ("broken", "flags", "code"),
    [(False, ["--dry-run"], 0), (True, ["--require-plugins", "runaway"], 78)],
    ids=["a dry run", "a start that fails"],
)
def test_a_plugins_thread_keeps_no_command_from_ending(
    broken: bool, flags: list[str], code: int, tiny_llama: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "runaway.py"
    plugin.write_text(RUNAWAY + ("raise ValueError('broken')\n" if broken else ""))
    try:
        done = run_command(["run", str(tiny_llama), "--plugin", str(plugin), *flags], timeout=30)
    except subprocess.TimeoutExpired as error:
        raise AssertionError("the command does not end") from error
    assert done.returncode == code, done.stderr
    assert "left behind: runaway" in done.stderr
    assert ("failed at stage 'import': ValueError: broken" in done.stderr) is broken
