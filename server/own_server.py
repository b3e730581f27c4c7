"""``OwnServer``: a ``server run`` that belongs to another verb, and ends with it.

It listens on a free port of the loopback address. Its log goes to our stderr.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from hookserve.engine.errors import EX_UNAVAILABLE, HookserveError

from .http_lines import Address, ReplyError, ServerUnreachableError, request
from .settings import all_specs

STOP_S = 15.0
"""What a clean stop gets before it is a kill."""
PORT_ATTEMPTS = 3
_PR_SET_PDEATHSIG = 1


class OwnServerError(HookserveError):
    """The server ended before it was ready; it has said why itself."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the server ended with exit code {exit_code} before it was ready")
        self.exit_code = exit_code


class OwnServer:
    """Starts on entering the block, ready or not; stops on leaving it."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        """Args:
        flags: raw texts by field name, as ``resolve_settings`` takes them.
        """
        self._words = flag_words({"log_level": "WARNING", **flags})
        self._process: subprocess.Popen[bytes] | None = None
        self.address = Address("127.0.0.1", 0)

    def __enter__(self) -> OwnServer:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def wait_ready(self) -> None:
        """Raises:
        OwnServerError: with the exit code of a server that ended instead.
        """
        for attempt in range(1, PORT_ATTEMPTS + 1):
            code = asyncio.run(self._until_ready())
            if code is None:
                return
            # Another program may have taken the port between our look and the server's.
            if code != EX_UNAVAILABLE or attempt == PORT_ATTEMPTS:
                raise OwnServerError(code)
            self._start()

    async def _until_ready(self) -> int | None:
        assert self._process is not None
        while (code := self._process.poll()) is None:
            try:
                async with request(self.address, "GET", "/readyz") as reply:
                    if reply.status == 200:
                        return None
            except (ServerUnreachableError, ReplyError):
                pass  # not listening yet
            await asyncio.sleep(0.05)
        return code

    def _start(self) -> None:
        self.address = Address("127.0.0.1", _free_port())
        command = [sys.executable, "-P", "-m", "hookserve.server.cli", "run", *self._words]
        command += ["--host=127.0.0.1", f"--port={self.address.port}", "--uds="]
        # A session of its own: an interrupt at the terminal is for us, not for the server.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_end_with_parent(),
        )

    def _stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Raw texts by field name, written as a command line again."""
    words: list[str] = []
    for spec in all_specs():
        if spec.name not in flags:
            continue
        raw = flags[spec.name]
        if isinstance(raw, bool):
            words.append(spec.flag if raw else f"--no-{spec.key}")
        else:
            texts = raw if isinstance(raw, list) else [raw]
            words += [f"{spec.flag}={text}" for text in texts]
    return words


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> Callable[[], None] | None:
    """What the child runs before it becomes the server, so that it never outlives us."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # who has ended before tells of it no more
            os._exit(os.EX_OK)

    return ask
