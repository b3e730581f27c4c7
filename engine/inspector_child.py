"""``InspectorChild``: one inspector process and the channel to it; starts it, asks, sees its end.

What to ask, and what follows from the answer, is ``model_inspection``'s.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from socket import socket
from types import TracebackType
from typing import TypeVar

import msgspec

from hookserve.hookspecs import Denied
from hookserve.hookspecs.crash_mark import CrashMark

from .channel import Channel, ChannelClosed, ChannelError
from .child_process import describe_exit, find_crash, module_command, spawn, whose_code_runs
from .environment import child_environment
from .errors import EX_SOFTWARE, EngineStartError
from .inspector_messages import Inspect
from .messages import Failed

INSPECTOR_COMMAND = module_command("hookserve.engine.inspector")
EXIT_CODE_S = 5.0
"""So long a process whose channel is closed may take to end."""

M = TypeVar("M", bound=msgspec.Struct)


class InspectorEndedError(EngineStartError):
    """The process ended, or took too long, without an answer.

    Attributes:
        crash: the plugin whose code ran then.
        how: what happened, without whose code it was.
    """

    def __init__(self, how: str, crash: Denied | None) -> None:
        super().__init__(EX_SOFTWARE, f"the inspector {how}{whose_code_runs(crash)}")
        self.crash = crash
        self.how = how


class InspectorChild:
    """Made by ``start``. A context manager: leaving it ends the process."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket, mark: CrashMark) -> None:
        self._process = process
        self._mark = mark
        self._channel = Channel(sock)

    @classmethod
    def start(cls, command: Sequence[str] = INSPECTOR_COMMAND) -> InspectorChild:
        """
        Raises:
            EngineStartError: the system starts no process.
        """
        mark = CrashMark.create()
        try:
            process, sock = spawn(command, child_environment(), mark)
        except OSError as error:
            mark.close()
            raise EngineStartError(
                EX_SOFTWARE, f"the inspector of model classes cannot be started: {error}"
            ) from error
        return cls(process, sock, mark)

    def tell(self, message: Inspect) -> None:
        """
        Raises:
            EngineStartError: the message cannot be sent.
        """
        try:
            self._channel.send(message)
        except ChannelClosed:
            pass  # it is gone; whoever expects an answer is told how
        except ChannelError as error:
            raise EngineStartError(EX_SOFTWARE, f"the inspector: {error}") from error

    def expect(self, timeout_s: float, *kinds: type[M]) -> M:
        """The next message, which is of one of the kinds.

        Raises:
            InspectorEndedError: there is none within the time, or the process has ended.
            EngineStartError: with the process's own last words, or it said something else.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while (message := self._channel.try_recv()) is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._channel.wait(left_s):
                    raise self._ended(f"took more than {timeout_s:g} s and was stopped")
        except ChannelClosed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_CODE_S)
            raise self._ended(describe_exit(self._process.poll())) from None
        except ChannelError as error:
            raise EngineStartError(EX_SOFTWARE, f"the inspector: {error}") from error
        if isinstance(message, Failed):
            raise EngineStartError(message.exit_code, message.message)
        if not isinstance(message, kinds):
            raise EngineStartError(EX_SOFTWARE, f"the inspector sent {type(message).__name__}")
        return message

    def _ended(self, how: str) -> InspectorEndedError:
        return InspectorEndedError(how, find_crash(self._mark, "inspector", self._process.poll()))

    def __enter__(self) -> InspectorChild:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._channel.close()
        self._mark.close()
