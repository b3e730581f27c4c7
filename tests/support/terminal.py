"""A program at a terminal of its own: what a person types there, and what it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

SHOW_TIMEOUT_S = 20.0
CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """A context manager; leaving it ends the program.

    Attributes:
        shown: all that was shown so far.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.shown = ""
        self._seen = 0
        # The terminal is the program's controlling one, so that Ctrl-C reaches it as a signal.
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> str:
        """All that was shown up to this text, since the last time."""
        deadline = time.monotonic() + SHOW_TIMEOUT_S
        while (at := self.shown.find(text, self._seen)) < 0:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{text!r} was not shown, but {self.shown[self._seen :]!r}"
            self._read(left_s)
        start, self._seen = self._seen, at + len(text)
        return self.shown[start : self._seen]

    def _read(self, timeout_s: float) -> None:
        if select.select([self._ours], [], [], timeout_s)[0]:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:  # what Linux says when the other side is closed
                piece = b""
            assert piece, f"the program ended: {self.shown[self._seen :]!r}"
            self.shown += piece.decode().replace("\r\n", "\n")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
