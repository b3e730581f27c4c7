"""How every process of the program writes its log: one handler, one format, one logger tree.

Only the ``hookserve`` logger is touched; the root logger and other libraries' are left alone.
Whether colour is wanted is the caller's to decide: this file reads no environment.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

LEVELS: tuple[str, ...] = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_COLORS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class LogFormatter(logging.Formatter):
    """``(Role pid=N) LEVEL MM-DD HH:MM:SS [file:line] message``; each further line of a message
    repeats the head, so that a filter by line keeps it."""

    def __init__(self, role: str, pid: int, *, color: bool = False) -> None:
        super().__init__(datefmt="%m-%d %H:%M:%S")
        self._prefix = f"({role} pid={pid})"
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname
        code = _COLORS.get(level) if self._color else None
        shown = f"\x1b[{code}m{level}\x1b[0m" if code else level
        when = self.formatTime(record, self.datefmt)
        head = f"{self._prefix} {shown} {when} [{record.filename}:{record.lineno}] "
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if record.stack_info:
            text = f"{text}\n{self.formatStack(record.stack_info)}"
        return "\n".join(head + line for line in text.splitlines() or [""])


def configure_logging(
    level: str, role: str, *, color: bool = False, stream: TextIO | None = None
) -> logging.Logger:
    """Send the ``hookserve`` logger to ``stream`` (stderr); calling it again replaces the handler.

    Args:
        level: one of ``LEVELS``.
        role: shown in every line, such as ``"Front"`` or ``"Engine"``.
    """
    import os

    logger = logging.getLogger("hookserve")
    for handler in list(logger.handlers):
        if isinstance(handler.formatter, LogFormatter):
            logger.removeHandler(handler)
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(LogFormatter(role, os.getpid(), color=color))
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return logger
