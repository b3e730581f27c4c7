"""``EngineChild``: one engine process and the channel to it; starts it, sees its end, ends it.

What is said over the channel is the supervisor's and the engine client's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Sequence

from hookserve.hookspecs import Denied
from hookserve.hookspecs.crash_mark import CrashMark

from .channel import AsyncChannel
from .child_process import describe_exit, find_crash, module_command, open_pidfd, spawn
from .codec import Message
from .environment import child_environment
from .running_engine import RunningEngine

ENGINE_COMMAND = module_command("hookserve.engine.process")
KILL_TIMEOUT_S = 5.0
POLL_S = 0.02
"""How often the process is looked at where the system has no pidfd."""


class EngineChild(RunningEngine):
    """Made on the event loop by ``start``; ``exited`` becomes the return code of the process.

    The child stays in the terminal's process group and ignores SIGINT itself; it inherits the
    environment, its end of a socketpair and the mark, and nothing else.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], channel: AsyncChannel, mark: CrashMark
    ) -> None:
        super().__init__(channel)
        self._process = process
        self._mark = mark
        self._crash: Denied | None = None
        self._is_closed = False
        self._loop = loop = asyncio.get_running_loop()
        self._pidfd = open_pidfd(process.pid)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._on_exit)

    @classmethod
    def start(cls, command: Sequence[str] = ENGINE_COMMAND) -> EngineChild:
        """Start the process with ``--fd N --mark M``.

        Raises:
            OSError: the system starts no process.
        """
        mark = CrashMark.create()
        try:
            process, sock = spawn(command, child_environment(), mark)
        except BaseException:
            mark.close()
            raise
        return cls(process, AsyncChannel(sock), mark)

    @property
    def name(self) -> str:
        return f"the engine process (pid {self.pid})"

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self.exited.done():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            step_s = left_s if self._pidfd is not None else min(left_s, POLL_S)
            await asyncio.wait({self.exited}, timeout=step_s)
            self._on_exit()
        return self.exited.done()

    async def end(self) -> None:
        """Make sure that the process has ended, by SIGKILL if it has not, and close everything.

        Anything gentler is said over the channel before: the child ignores other signals.
        """
        self.kill()
        await self.wait(KILL_TIMEOUT_S)
        self.close()

    def end_now(self, last_message: Message, timeout_s: float) -> None:
        """As ``end``, after ``last_message`` and up to ``timeout_s``, without the event loop."""
        if not self.channel.try_send(last_message):
            self.channel.close()  # which says the same, less politely
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.abandon()

    def abandon(self) -> None:
        """As ``end``, from any thread, and whether or not the event loop runs."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT_S)
        if self._loop.is_running() and _running_loop() is not self._loop:
            with contextlib.suppress(RuntimeError):  # it was closed in this moment
                self._loop.call_soon_threadsafe(self._end_watch)
                return
        self._end_watch()

    def _end_watch(self) -> None:
        if not self._loop.is_closed():
            self._on_exit()
        self.close()

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        if self._process.poll() is None:
            self._process.kill()

    def describe_end(self) -> str:
        """How the process ended, for a sentence: ``"was killed by SIGKILL"``; where a plugin's code
        ran, with its name."""
        crash = self.crash()
        where = "" if crash is None else f" while the code of plugin {crash.identity} ran"
        return f"{describe_exit(self._process.poll())}{where}"

    def crash(self) -> Denied | None:
        """The plugin whose code ran when the process ended."""
        if not self._is_closed:
            self._crash = find_crash(self._mark, "engine", self._process.poll())
        return self._crash

    def close(self) -> None:
        """Close our end of the channel and stop watching; the process sees that and ends."""
        self._close_pidfd()
        if not self._is_closed:
            self.crash()  # the mark goes
            self._is_closed = True
            self.channel.close()
            self._mark.close()

    def _on_exit(self) -> None:
        code = self._process.poll()
        if code is not None and not self.exited.done():
            self.exited.set_result(code)
            self._close_pidfd()

    def _close_pidfd(self) -> None:
        if self._pidfd is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """That of this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
