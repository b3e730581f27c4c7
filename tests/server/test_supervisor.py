"""``EngineSupervisor`` and ``serve`` over a process that plays an engine: start, death, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import scripted_engine
from hookserve.engine.errors import EngineDeadError, EngineStartError, HookserveError
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import Host, PluginSettings, RequiredPluginError, bootstrap
from hookserve.server.listen import ListenError, listen_tcp, listen_unix
from hookserve.server.runtime import ServerRuntime
from hookserve.server.serve import serve
from hookserve.server.settings import ServerSettings, resolve_settings

Command = tuple[str, ...]


def command(mode: str) -> Command:
    return (sys.executable, "-P", scripted_engine.__file__, mode)


@pytest.fixture
def host() -> Iterator[Host]:
    made = bootstrap(["front"], PluginSettings(no_plugins=True))
    yield made
    made.close()


@pytest.fixture
def make_runtime(
    host: Host, make_engine_config: Callable[..., Any], byte_tokenizer: Any
) -> Callable[..., ServerRuntime]:
    def make(mode: str | Command, **model: Any) -> ServerRuntime:
        config = make_engine_config(**model)
        words = command(mode) if isinstance(mode, str) else mode
        return ServerRuntime(ServerSettings(), host, config, byte_tokenizer, command=words)

    return make


def test_an_engine_that_comes_up_and_is_stopped(make_runtime: Any) -> None:
    async def run() -> None:
        runtime = make_runtime("normal")
        ready = await runtime.start()
        assert ready.num_gpu_blocks == 4096
        assert runtime.vllm_config.cache_config.num_gpu_blocks == 4096
        assert runtime.health.problem() is None
        pid = runtime.supervisor.pid
        started = time.monotonic()
        await runtime.stop()
        assert time.monotonic() - started < 2
        assert not Path(f"/proc/{pid}").exists()
        assert not runtime.supervisor.died.is_set(), "a stop that was asked for is no death"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("refuse", 74, "tensor x is missing from the file"),
        ("crash", 70, "SIGSEGV"),
    ],
)
def test_a_start_that_fails_keeps_code_and_sentence(
    make_runtime: Any, mode: str, code: int, words: str
) -> None:
    async def run() -> None:
        runtime = make_runtime(mode)
        with pytest.raises(EngineStartError, match=words) as caught:
            await runtime.start()
        assert caught.value.exit_code == code
        assert "\n" not in str(caught.value)
        await runtime.stop()

    asyncio.run(run())


def test_an_engine_killed_while_it_loads_is_told(make_runtime: Any) -> None:
    async def run() -> None:
        runtime = make_runtime("slow")
        start = asyncio.create_task(runtime.start())
        async with asyncio.timeout(20):
            while runtime.supervisor.pid is None:
                await asyncio.sleep(0.001)
        os.kill(runtime.supervisor.pid, signal.SIGKILL)
        with pytest.raises(EngineStartError, match="SIGKILL before it was ready") as caught:
            await asyncio.wait_for(start, 20)
        assert caught.value.exit_code == 70
        await runtime.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (("/bin/false",), "ended with exit code 1 before it was ready"),
        (("/nowhere/python",), "cannot be started: .*No such file"),
    ],
)
def test_a_process_that_never_listens_is_told_in_a_sentence(
    make_runtime: Any, program: Command, words: str
) -> None:
    async def run() -> None:
        # More than a socket holds: the process is gone before it has been told everything.
        runtime = make_runtime(program, hf_config={"padding": "x" * 3_000_000})
        with pytest.raises(EngineStartError, match=words) as caught:
            await runtime.start()
        assert caught.value.exit_code == 70
        await runtime.stop()

    asyncio.run(run())


def test_a_plugin_that_fails_in_the_engine_is_out_everywhere(make_runtime: Any, host: Host) -> None:
    name = "hookserve:builtin:models"

    async def run() -> None:
        runtime = make_runtime(f"plugin-fails:{name}")
        await runtime.start()
        await runtime.stop()

    asyncio.run(run())
    (report,) = [report for report in host.describe() if report.identity == name]
    assert report.state == "out"
    assert "engine" in report.reason
    assert host.registry("model").claims() == []


def test_what_failed_in_front_is_denied_to_the_engine_from_the_start(
    make_runtime: Any, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.engine import supervisor
    from hookserve.hookspecs import Denied

    host.deny(Denied("hookserve:builtin:models", "front", "run", "no"))
    sent: list[Any] = []
    make_start = supervisor.Start
    monkeypatch.setattr(supervisor, "Start", lambda *args: sent.append(args) or make_start(*args))

    async def run() -> None:
        runtime = make_runtime("normal")
        await runtime.start()
        await runtime.stop()

    asyncio.run(run())
    ((_, plugins),) = sent
    assert [denied.identity for denied in plugins.denied] == ["hookserve:builtin:models"]


def test_an_essential_plugin_that_fails_in_the_engine_stops_the_start(make_runtime: Any) -> None:
    async def run() -> None:
        runtime = make_runtime("plugin-fails:hookserve:builtin:cpu")
        with pytest.raises(RequiredPluginError, match="hookserve:builtin:cpu"):
            await runtime.start()
        await runtime.stop()

    asyncio.run(run())


def test_plugins_that_go_on_failing_stop_the_start(make_runtime: Any) -> None:
    names = ["models", "loaders", "sources", "stat_loggers"]
    mode = "plugin-fails:" + ",".join(f"hookserve:builtin:{name}" for name in names)

    async def run() -> None:
        runtime = make_runtime(mode)
        with pytest.raises(EngineStartError, match="started 4 times") as caught:
            await runtime.start()
        assert caught.value.exit_code == 78
        assert runtime.supervisor.pid is None
        await runtime.stop()

    asyncio.run(run())


@pytest.fixture
def start_with_endpoint(
    make_engine_config: Callable[..., Any], byte_tokenizer: Any, tmp_path: Path
) -> Iterator[Callable[..., contextlib.AbstractAsyncContextManager[ServerRuntime]]]:
    """A started runtime with a plugin, known to both processes, whose endpoint has ``body`` as its
    ``init_state``."""
    hosts: list[Host] = []

    @contextlib.asynccontextmanager
    async def start(body: str, *, required: bool = False) -> AsyncIterator[ServerRuntime]:
        # A module's name is used once in a process.
        plugin = tmp_path / f"late_{tmp_path.name}.py"
        plugin.write_text(
            "from starlette.responses import PlainTextResponse\n"
            "from starlette.routing import Route\n"
            "from hookserve.engine.sampling_params import SamplingParams\n"
            "from hookserve.hookspecs import Endpoint, hookimpl\n"
            "async def answer(request):\n"
            "    return PlainTextResponse('late')\n"
            "class Late:\n"
            "    def routes(self):\n"
            "        return [Route('/late', answer)]\n"
            "    async def init_state(self, engine_client, state, settings):\n"
            f"        {body}\n"
            "@hookimpl\n"
            "def endpoint():\n"
            "    return Endpoint('late', Late)\n"
        )
        require = (plugin.stem,) if required else ()
        hosts.append(bootstrap(["front"], PluginSettings(files=(str(plugin),), require=require)))
        config = make_engine_config()
        runtime = ServerRuntime(
            ServerSettings(), hosts[-1], config, byte_tokenizer, command=command("normal")
        )
        try:
            await runtime.start()
            yield runtime
        finally:
            await runtime.stop()

    yield start
    for host in hosts:
        host.close()


async def tokens_of(runtime: ServerRuntime, prompt: list[int]) -> list[int]:
    outputs = runtime.client.generate(prompt, SamplingParams(max_tokens=2), "a test")
    return [token async for output in outputs for token in output.new_token_ids]


def test_a_plugin_that_fails_in_init_state_is_out_in_the_engine_too(
    start_with_endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.engine import supervisor

    sent: list[Any] = []
    make_start = supervisor.Start
    monkeypatch.setattr(supervisor, "Start", lambda *args: sent.append(args) or make_start(*args))

    async def run() -> None:
        async with start_with_endpoint("raise RuntimeError('no licence')") as runtime:
            assert runtime.health.problem() is None
            assert not runtime.supervisor.died.is_set()
            assert await tokens_of(runtime, [1]) == [66, 67]
            transport = httpx.ASGITransport(runtime.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.get("/late")).status_code == 404

    asyncio.run(run())
    first, second = ([each.identity for each in plugins.denied] for _, plugins in sent)
    assert first == []
    assert [identity.startswith("file:late_") for identity in second] == [True]


def test_an_endpoint_that_comes_up_restarts_nothing(start_with_endpoint: Any) -> None:
    async def run() -> None:
        async with start_with_endpoint("state.seen = engine_client.is_running") as runtime:
            assert runtime.app.state.seen is True
            transport = httpx.ASGITransport(runtime.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.get("/late")).text == "late"

    asyncio.run(run())


def test_a_required_plugin_that_fails_in_init_state_stops_the_start(
    start_with_endpoint: Any,
) -> None:
    async def run() -> None:
        body = "raise RuntimeError('no licence')"
        async with start_with_endpoint(body, required=True):
            pytest.fail("it started")

    with pytest.raises(RequiredPluginError, match="no licence") as caught:
        asyncio.run(run())
    assert caught.value.exit_code == 78


def test_an_engine_that_dies_during_init_state_is_no_fault_of_the_plugin(
    start_with_endpoint: Any,
) -> None:
    async def run() -> None:
        body = "[_ async for _ in engine_client.generate([8], SamplingParams(), 'fatal')]"
        async with start_with_endpoint(body):
            pytest.fail("it started")

    with pytest.raises(EngineDeadError, match="SIGKILL"):
        asyncio.run(run())


def test_a_killed_engine_is_seen_at_once(make_runtime: Any) -> None:
    async def run() -> None:
        runtime = make_runtime("normal")
        await runtime.start()
        os.kill(runtime.supervisor.pid, signal.SIGKILL)
        started = time.monotonic()
        await asyncio.wait_for(runtime.supervisor.died.wait(), 2)
        assert time.monotonic() - started < 0.5
        problem = runtime.health.problem()
        assert problem is not None
        assert problem.code == "engine_dead"
        assert "SIGKILL" in problem.message
        await runtime.stop()

    asyncio.run(run())


# -- the whole front ------------------------------------------------------------------------------


class Running:
    """``serve`` as a task, and a client to it."""

    def __init__(self, task: asyncio.Task[int], http: httpx.AsyncClient) -> None:
        self.task = task
        self.http = http

    async def until_ready(self) -> None:
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await self.http.get("/readyz")).status_code == 200:
                        return
                await asyncio.sleep(0.01)


@pytest.fixture
def serve_front(
    host: Host, make_engine_config: Callable[..., Any], byte_tokenizer: Any
) -> Callable[..., contextlib.AbstractAsyncContextManager[Running]]:
    @contextlib.asynccontextmanager
    async def start(mode: str = "normal", **server: Any) -> AsyncIterator[Running]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = resolve_settings({}, {})
        server_settings = msgspec.structs.replace(settings.server, port=port, **server)
        settings = msgspec.structs.replace(settings, server=server_settings)
        config = make_engine_config(max_model_len=10_000)
        task = asyncio.create_task(
            serve(settings, host, config, byte_tokenizer, command=command(mode))
        )
        transport = httpx.AsyncHTTPTransport(uds=server.get("uds"))
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=10, transport=transport, trust_env=False
        ) as http:
            yield Running(task, http)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return start


async def read_stream(front: Running, first: asyncio.Event) -> list[str]:
    body = {"prompt": [9], "stream": True, "max_tokens": 9000, "ignore_eos": True}
    lines = []
    async with front.http.stream("POST", "/v1/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if line:
                lines.append(line)
                first.set()
    return lines


def test_sigterm_ends_streams_with_a_typed_error_and_exits_0(serve_front: Any) -> None:
    async def run() -> None:
        async with serve_front() as front:
            await front.until_ready()
            first = asyncio.Event()
            stream = asyncio.create_task(read_stream(front, first))
            await asyncio.wait_for(first.wait(), 5)
            os.kill(os.getpid(), signal.SIGTERM)
            lines = await asyncio.wait_for(stream, 5)
            assert '"code":"shutdown"' in lines[-1]
            assert "[DONE]" not in "".join(lines)
            assert await asyncio.wait_for(front.task, 10) == 0

    asyncio.run(run())


def test_a_drain_lets_open_requests_end_and_refuses_new_ones(serve_front: Any) -> None:
    async def run() -> None:
        async with serve_front(shutdown_timeout=1.5) as front:
            await front.until_ready()
            first = asyncio.Event()
            stream = asyncio.create_task(read_stream(front, first))
            await asyncio.wait_for(first.wait(), 5)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.1)
            ready = await front.http.get("/readyz")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
            refused = await front.http.post("/v1/completions", json={"prompt": "a"})
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            assert (await front.http.get("/livez")).status_code == 200
            assert not stream.done()
            assert '"code":"shutdown"' in (await asyncio.wait_for(stream, 5))[-1]
            assert await asyncio.wait_for(front.task, 10) == 0

    asyncio.run(run())


def test_an_engine_that_dies_ends_streams_and_exits_70(serve_front: Any) -> None:
    async def run() -> None:
        async with serve_front() as front:
            await front.until_ready()
            first = asyncio.Event()
            stream = asyncio.create_task(read_stream(front, first))
            await asyncio.wait_for(first.wait(), 5)
            died_at = time.monotonic()
            reply = await front.http.post("/v1/completions", json={"prompt": [8]})
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "engine_dead"
            ready = await front.http.get("/readyz")
            assert ready.status_code == 503
            lines = await asyncio.wait_for(stream, 2)
            assert '"code":"engine_dead"' in lines[-1]
            assert await asyncio.wait_for(front.task, 5) == 70
            assert time.monotonic() - died_at < 2

    asyncio.run(run())


def test_while_the_model_loads_only_probes_are_answered(serve_front: Any) -> None:
    async def run() -> None:
        async with serve_front("slow") as front:
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        assert (await front.http.get("/livez")).status_code == 200
                        break
                    await asyncio.sleep(0.01)
            for path in ("/readyz", "/health", "/v1/models", "/metrics"):
                reply = await front.http.get(path)
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(front.task, 10) == 0

    asyncio.run(run())


def test_a_stop_while_a_stopped_engine_loads_waits_for_nothing(serve_front: Any) -> None:
    """SIGSTOP on the engine before it is ready, then SIGTERM on the front."""

    def children() -> list[str]:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

    async def run() -> None:
        before = set(children())
        async with serve_front("slow") as front:
            async with asyncio.timeout(20):
                while not (new := set(children()) - before):
                    await asyncio.sleep(0.001)
            (engine,) = map(int, new)
            os.kill(engine, signal.SIGSTOP)
            started = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(front.task, 20) == 0
            assert time.monotonic() - started < 5
            assert not Path(f"/proc/{engine}").exists()

    asyncio.run(run())


def test_a_failed_start_ends_with_the_engines_own_error(serve_front: Any) -> None:
    async def run() -> None:
        async with serve_front("refuse") as front:
            with pytest.raises(HookserveError, match="tensor x is missing") as caught:
                await asyncio.wait_for(front.task, 20)
            assert caught.value.exit_code == 74

    asyncio.run(run())


def test_a_unix_socket_is_served_and_removed(serve_front: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def run() -> None:
        async with serve_front(uds=str(path)) as front:
            await front.until_ready()
            assert (await front.http.get("/v1/models")).status_code == 200
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(front.task, 10) == 0

    asyncio.run(run())
    assert not path.exists()


def test_headers_are_bounded_and_garbage_is_told(serve_front: Any) -> None:
    async def exchange(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        reply = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        return reply

    async def run() -> None:
        async with serve_front() as front:
            await front.until_ready()
            port = front.http.base_url.port
            many = b"GET /livez HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(20_000))
            assert (await exchange(port, many)).startswith(b"HTTP/1.1 431 ")
            one = b"GET /livez HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"
            reply = await exchange(port, one)
            assert reply.startswith(b"HTTP/1.1 431 ")
            assert b'{"error":' in reply
            reply = await exchange(port, b"\x16\x03\x01 garbage\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 400 ")
            assert b'{"error":' in reply
            reply = await exchange(port, b"GET / HTTP/1.1\r\nx\r\n: " + b"y" * 70_000)
            assert reply.count(b'{"error":') == 1
            assert (await front.http.get("/readyz")).status_code == 200
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(front.task, 10)

    asyncio.run(run())


def test_a_request_that_offers_another_protocol_is_answered_in_this_one(serve_front: Any) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    post = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n%sContent-Length: %d\r\n\r\n%s"
    last = b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    data = post % (offer, len(body), body) * 2 + last

    async def replies(port: int, pieces: list[bytes]) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)
        reply = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return reply

    async def run() -> None:
        async with serve_front() as front:
            await front.until_ready()
            port = front.http.base_url.port
            in_sevens = [data[i : i + 7] for i in range(0, len(data), 7)]
            for pieces in ([data], in_sevens):
                reply = await replies(port, pieces)
                assert reply.count(b"HTTP/1.1 200 ") == 3, reply
                assert reply.count(b'"text_completion"') == 2
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(front.task, 10)

    asyncio.run(run())


def test_a_port_in_use_names_port_and_process() -> None:
    with listen_tcp("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} .*process {os.getpid()}") as caught:
            listen_tcp("127.0.0.1", port)
    assert caught.value.exit_code == 69


@pytest.mark.parametrize("host_name", ["x" * 70, "no.such.host.invalid"])
def test_a_host_that_is_none_is_told(host_name: str) -> None:
    with pytest.raises(ListenError, match=f"host '{host_name}'"):
        listen_tcp(host_name, 0)


@pytest.mark.parametrize("name", ["file/s", "no/s", "x" * 200])
def test_a_socket_path_that_cannot_be_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ListenError, match="cannot listen at socket"):
        listen_unix(str(tmp_path / name))


def test_a_socket_file_is_replaced_only_if_nobody_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    first = listen_unix(path)
    with pytest.raises(ListenError, match="in use"):
        listen_unix(path)
    first.close()
    listen_unix(path).close()
    (tmp_path / "f").write_text("precious")
    with pytest.raises(ListenError, match="no socket"):
        listen_unix(str(tmp_path / "f"))
    assert (tmp_path / "f").read_text() == "precious"
