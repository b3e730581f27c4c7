"""``WorkerChild``: one worker process as the engine sees it: started, spoken to, ended.

What is said is ``multiproc_executor``'s.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence

from hookserve.hookspecs.crash_mark import CrashMark

from .channel import Channel, ChannelClosed
from .child_process import describe_exit, find_crash, module_command, open_pidfd, spawn
from .codec import Message
from .environment import worker_environment
from .errors import WorkerError
from .messages import Failed
from .rank_watch import Wait, read_wait

WORKER_COMMAND = module_command("hookserve.engine.worker_process")
EXIT_CODE_S = 0.2
"""After its channel closed, how long the process may take to have an exit code."""


class WorkerChild:
    """Made by ``start``. ``fds`` become readable when it says something and when it ends."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], sock: socket.socket, mark: CrashMark
    ) -> None:
        self.rank = rank
        self.channel = Channel(sock)
        self._mark = mark
        self._process = process
        self._pidfd = open_pidfd(process.pid)
        self._is_silent = False
        self.fds = [self.channel.fileno()]
        if self._pidfd is not None:
            self.fds.append(self._pidfd)

    @classmethod
    def start(cls, rank: int, command: Sequence[str] = WORKER_COMMAND) -> WorkerChild:
        """Raises:
        WorkerError: the system starts no process.
        """
        mark = CrashMark.create()
        try:
            process, sock = spawn(command, worker_environment(), mark)
        except OSError as error:
            mark.close()
            raise WorkerError(f"worker {rank} cannot be started: {error}") from error
        return cls(rank, process, sock, mark)

    @property
    def pid(self) -> int:
        return self._process.pid

    def receive(self) -> list[Message]:
        """What has arrived, without waiting.

        Raises:
            WorkerError: it has ended, with its own last words where it left some.
        """
        messages: list[Message] = []
        try:
            while not self._is_silent:
                message = self.channel.try_recv()
                if message is None:
                    break
                messages.append(message)
        except ChannelClosed:
            self._is_silent = True
        for message in messages:
            if isinstance(message, Failed):
                error = WorkerError(message.message, message.exit_code)
                error.add_note(f"In worker {self.rank}:\n{message.detail}")
                raise error
        if not messages and (self._is_silent or self._process.poll() is not None):
            raise self.end_error()
        return messages

    def end_error(self) -> WorkerError:
        """How it ended, and whose code ran then; before ``end``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_CODE_S)
        code = self._process.poll()
        crash = find_crash(self._mark, "worker", code)
        ran = "" if crash is None else f" while the code of plugin {crash.identity} ran"
        error = WorkerError(f"worker {self.rank} (pid {self.pid}) {describe_exit(code)}{ran}")
        error.failures = [] if crash is None else [crash]
        return error

    def read_wait(self) -> Wait | None:
        """What it waits in by now, if it does."""
        return read_wait(self._mark)

    def wait(self, timeout_s: float) -> bool:
        """Whether the process has ended within ``timeout_s``."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Make sure that it has ended, by SIGKILL if it has not, and close everything."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.channel.close()
        self._mark.close()
        self.fds = []
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
