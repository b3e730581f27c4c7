"""``serve``: one front process from its start to its exit code: socket, signals, HTTP, engine.

What it serves is ``runtime``'s; settings and plugins are ready when it is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence

import uvicorn
from uvicorn.config import WSProtocolType

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_child import ENGINE_COMMAND
from hookserve.engine.errors import EX_SOFTWARE
from hookserve.engine.messages import Ready
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.hookspecs import Host

from .endpoint_set import EndpointSet
from .http_protocol import LimitedHttpProtocol
from .listen import BACKLOG, address_of, listen_tcp, listen_unix
from .runtime import ServerRuntime
from .settings import ServerSettings, Settings

logger = logging.getLogger("hookserve.server")

DEAD_LINGER_S = 0.3
"""How long a server whose engine died still answers, so that its 503 can be seen."""
DEAD_FLUSH_S = 0.3
STOP_FLUSH_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
ONE_STOP_S = 0.25
"""Signals that come within this are one: ``timeout`` and some supervisors send theirs to the
process and to its group."""


async def serve(
    settings: Settings,
    host: Host,
    engine_config: EngineConfig,
    tokenizer: Tokenizer,
    *,
    command: Sequence[str] = ENGINE_COMMAND,
) -> int:
    """Serve until told to stop, or until the engine dies. Must run in the main thread.

    Returns: the exit code: 0 after SIGTERM or SIGINT, 70 if the engine died.

    Raises:
        HookserveError: the address cannot be had, or the engine did not come up.
        HostError: plugins.
    """
    started = time.monotonic()
    server_settings = settings.server
    with _listening(server_settings) as sock:
        runtime = ServerRuntime(server_settings, host, engine_config, tokenizer, command=command)
        front = Front(runtime, sock)
        code = await front.run(started)
    if code == EX_SOFTWARE:
        host.close()  # what its plugins say to that is not to come after the reason
        logger.error("the server ends with exit code %d: %s", code, runtime.health.death)
    return code


class Front:
    """The HTTP server and the runtime side by side, and what ends them."""

    def __init__(self, runtime: ServerRuntime, sock: socket.socket) -> None:
        self._runtime = runtime
        self._sock = sock
        self._address = address_of(sock)
        self._http = HttpServer(runtime)
        self._stop_asked = asyncio.Event()
        self._stop_asked_at = 0.0

    async def run(self, started: float) -> int:
        runtime = self._runtime
        with self._signals():
            http = asyncio.create_task(self._http.serve(sockets=[self._sock]), name="http")
            try:
                ready = await self._start_or_stop(http)
                if ready is None:
                    return 0
                _log_ready(ready, self._address, time.monotonic() - started)
                died = await self._first(runtime.supervisor.died.wait(), self._stop_asked.wait())
                if died:
                    await asyncio.sleep(DEAD_LINGER_S)
                    self._http.flush_s = DEAD_FLUSH_S
                    return EX_SOFTWARE
                logger.info("stopping: %d requests open", runtime.client.num_unfinished_requests)
                await runtime.drain(runtime.settings.shutdown_timeout)
                return EX_SOFTWARE if runtime.supervisor.died.is_set() else 0
            finally:
                self._http.should_exit = True
                await http
                await runtime.stop()

    async def _start_or_stop(self, http: asyncio.Task[None]) -> Ready | None:
        """Start the engine; ``None`` if a signal came first."""
        start = asyncio.create_task(self._runtime.start(), name="start")
        stop = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({start, stop, http}, return_when=asyncio.FIRST_COMPLETED)
            if http.done():
                await http  # raises what ended it
            if start.done():
                return await start
            logger.info("stopping before the model was loaded")
            return None
        finally:
            stop.cancel()
            if not start.done():
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)

    async def _first(self, one: object, other: object) -> bool:
        """Wait for either; whether ``one`` came."""
        tasks = [asyncio.ensure_future(each) for each in (one, other)]  # type: ignore[call-overload]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return bool(tasks[0].done() and not tasks[0].cancelled())

    @contextlib.contextmanager
    def _signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        """The first one asks for a clean stop; a later one ends everything at once."""
        now = time.monotonic()
        if not self._stop_asked.is_set():
            self._runtime.health.set_draining()
            self._stop_asked.set()
            self._stop_asked_at = now
            return
        if now - self._stop_asked_at < ONE_STOP_S:
            return
        self._runtime.supervisor.kill()
        sys.stderr.flush()
        os._exit(128 + number)


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling and logging, and with a bounded end."""

    def __init__(self, runtime: ServerRuntime) -> None:
        super().__init__(
            uvicorn.Config(
                runtime.app,
                http=LimitedHttpProtocol,
                ws=_websocket_protocol(runtime.endpoints),
                lifespan="off",
                loop="asyncio",
                log_config=None,
                # What fails is told by the application itself, with its request or its plugin.
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                root_path=runtime.settings.root_path,
                backlog=BACKLOG,
            )
        )
        self.flush_s = STOP_FLUSH_S

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, let open replies end within ``flush_s``, cancel the rest."""
        for server in self.servers:
            server.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        deadline = time.monotonic() + self.flush_s
        while (state.connections or state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=0.1)


def _websocket_protocol(endpoints: EndpointSet) -> WSProtocolType:
    """uvicorn's name for what speaks WebSocket; nothing does unless plugins may have routes for
    it."""
    if not endpoints.may_open_websockets:
        return "none"
    if importlib.util.find_spec("websockets") is not None:
        return "websockets-sansio"
    for route in endpoints.websockets():
        logger.warning(
            "%s is never reached: there is no library for WebSockets; pip install "
            "hookserve[websocket]",
            route,
        )
    return "none"


@contextlib.contextmanager
def _listening(settings: ServerSettings) -> Generator[socket.socket, None, None]:
    """The listening socket; its file, if it has one, is removed at the end."""
    if settings.uds is not None:
        sock = listen_unix(settings.uds)
    else:
        sock = listen_tcp(settings.host, settings.port)
    try:
        yield sock
    finally:
        sock.close()
        if settings.uds is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(settings.uds)


def _log_ready(ready: Ready, address: str, seconds: float) -> None:
    logger.info(
        "engine    %d KV blocks of %d tokens (%.0f MiB): %s",
        ready.num_gpu_blocks,
        ready.block_size,
        ready.kv_cache_bytes / 2**20,
        ready.kv_cache_reason,
    )
    logger.info("threads   %d: %s", ready.num_threads, ready.threads_reason)
    logger.info(
        "ready at %s after %.1f s (model %.1f s, warm-up %.1f s)",
        address,
        seconds,
        ready.load_s,
        ready.warmup_s,
    )
