"""How a server ends, by order and by accident, and what its clients and its operator see."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import RunningServer, run_command, wait_until

Start = Callable[..., RunningServer]

ENDLESS = {
    "prompt": [5, 6, 7, 8],
    "max_tokens": 480,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


class OpenStream:
    """A request whose stream is read in a thread; keeps what came, and when it ended."""

    def __init__(self, server: RunningServer, body: dict[str, Any] = ENDLESS) -> None:
        self.lines: list[str] = []
        self.broken: Exception | None = None
        self.ended_at: float | None = None
        self._server, self._body = server, body
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._started.wait(30), "no token came"

    def _read(self) -> None:
        try:
            with (
                self._server.client(timeout=60) as client,
                client.stream("POST", "/v1/completions", json=self._body) as reply,
            ):
                for line in reply.iter_lines():
                    if line.startswith("data: "):
                        self.lines.append(line.removeprefix("data: "))
                        self._started.set()
        except httpx.TransportError as error:
            self.broken = error
        finally:
            self.ended_at = time.monotonic()
            self._started.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the stream never ended"

    def error(self) -> dict[str, Any]:
        """The error event that ended the stream."""
        assert self.broken is None, f"cut off without a word: {self.broken!r}"
        errors = [json.loads(line)["error"] for line in self.lines if '"error"' in line]
        assert len(errors) == 1, self.lines[-3:]
        return dict(errors[0])


def slow_args(model: Path) -> list[str]:
    return [str(model), "--served-model-name", "m", "--kv-cache-memory-bytes", str(256 << 20)]


@pytest.fixture
def server(running_server: Start, smollm2_gguf: Path) -> RunningServer:
    """The real model: a stream of hundreds of tokens lasts for seconds."""
    return running_server(slow_args(smollm2_gguf))


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


def test_sigterm_stops_cleanly(running_server: Start, tiny_llama: Path) -> None:
    server = running_server([str(tiny_llama)])
    engine = server.engine_pid
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)  # as from a supervisor that signals the group too
    assert server.wait_exit(15) == 0, server.output()
    assert is_gone(engine)
    assert "Traceback" not in server.stderr


def test_whoever_keeps_asking_for_a_stop_gets_it_at_once(
    running_server: Start, smollm2_gguf: Path
) -> None:
    server = running_server([*slow_args(smollm2_gguf), "--shutdown-timeout", "60"])
    stream = OpenStream(server)

    def ask_again() -> bool:
        server.signal(signal.SIGTERM)
        return server.process.poll() is not None

    wait_until(ask_again, 10, "the end", interval=0.1)
    assert server.wait_exit(1) == 128 + signal.SIGTERM
    stream.join(5)
    assert len(stream.lines) < ENDLESS["max_tokens"]


def test_sigterm_ends_an_open_stream_with_a_word(server: RunningServer) -> None:
    stream = OpenStream(server)
    server.signal(signal.SIGTERM)
    assert server.wait_exit(40) == 0, server.output()
    stream.join(5)
    assert stream.broken is None
    assert stream.lines[-1] == "[DONE]" or stream.error()
    assert "Traceback" not in server.stderr


def watch_readiness(server: RunningServer) -> tuple[float, int | None]:
    """Seconds until readiness is no longer 200, and what was answered then."""
    start = time.monotonic()
    with server.client(timeout=2) as client:
        while True:
            try:
                status: int | None = client.get("/readyz").status_code
            except httpx.TransportError:
                status = None
            if status != 200:
                return time.monotonic() - start, status
            assert time.monotonic() - start < 40, "readiness never changed"
            time.sleep(0.005)


def test_a_killed_engine_ends_everything_with_70(server: RunningServer) -> None:
    stream = OpenStream(server)
    os.kill(server.engine_pid, signal.SIGKILL)
    seconds, status = watch_readiness(server)
    assert status == 503
    assert seconds < 0.5
    stream.join(5)
    assert stream.error()["message"]
    assert server.wait_exit(5) == 70
    assert "engine" in server.stderr
    assert "Traceback" not in server.stderr


@pytest.mark.slow
def test_a_stopped_engine_is_a_stall_until_it_goes_on(server: RunningServer) -> None:
    """Alive for the system, but no step ends: said after ten seconds and not before."""
    stream = OpenStream(server)
    engine = server.engine_pid
    os.kill(engine, signal.SIGSTOP)
    seconds, status = watch_readiness(server)
    assert status == 503
    assert 8 < seconds < 25
    reason = server.get("/readyz").json()["error"]
    assert reason["code"] == "stalled"
    assert server.status("/livez") == 200
    os.kill(engine, signal.SIGCONT)
    wait_until(lambda: server.status("/readyz") == 200, 10, "readiness")
    stream.join(120)
    assert stream.broken is None
    assert stream.lines[-1] == "[DONE]"


def test_an_idle_engine_that_is_stopped_is_no_stall(
    running_server: Start, tiny_llama: Path
) -> None:
    """No work is pending, so nothing is late."""
    server = running_server([str(tiny_llama)])
    engine = server.engine_pid
    os.kill(engine, signal.SIGSTOP)
    assert server.status("/livez") == 200
    assert server.status("/readyz") == 200
    os.kill(engine, signal.SIGCONT)
    reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
    assert reply.status_code == 200, reply.text


def test_an_engine_does_not_outlive_its_front(running_server: Start, tiny_llama: Path) -> None:
    server = running_server([str(tiny_llama)])
    engine = server.engine_pid
    server.signal(signal.SIGKILL)
    wait_until(lambda: is_gone(engine), 5, "the end of the orphaned engine")


def test_a_port_in_use_is_69(tiny_llama: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_command(["run", str(tiny_llama), "--port", port])
    assert done.returncode == 69, done.stderr
    assert port in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
