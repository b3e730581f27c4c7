"""How every process of the program writes its log: one handler, one format, one logger tree.

``configure_logging`` touches the ``hookserve`` logger alone. ``own_logging`` is for processes that
are the program's own: there records of plugins' own loggers come to the same place. Whether colour
is wanted is the caller's to decide: this file reads no environment.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

from hookserve.hookspecs.record_owner import owner_of_record

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

logger = logging.getLogger(__name__)

LEVELS: tuple[str, ...] = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
ECOSYSTEM = "vllm"
"""The package whose loggers' lines plugins expect to be shown, whoever's code runs."""
_COLORS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "31;1"}


class LogFormatter(logging.Formatter):
    """``(Role pid=N) LEVEL MM-DD HH:MM:SS [file:line] message``; each further line of a message
    repeats the head, so that a filter by line keeps it. ``plugin IDENTITY says:`` stands before
    what one says."""

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
        plugin = getattr(record, "plugin", None)
        if plugin is not None:
            head += f"plugin {plugin} says: "
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


def level_in_force() -> str:
    """What ``configure_logging`` was given last in this process; ``INFO`` without it."""
    logger = logging.getLogger("hookserve")
    is_ours = any(isinstance(each.formatter, LogFormatter) for each in logger.handlers)
    return logging.getLevelName(logger.level) if is_ours else "INFO"


class RootHandler(logging.Handler):
    """Hands on what plugins' own loggers and the ecosystem's say, and the warnings of everybody
    else."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        owner = owner_of_record(record)
        if owner is not None:
            record.plugin = owner
        elif record.levelno < logging.WARNING and not _is_ecosystem(record.name):
            return
        self._target.handle(record)


def _is_ecosystem(logger: str) -> bool:
    return logger.partition(".")[0] == ECOSYSTEM


def own_logging(
    level: str, role: str, *, color: bool = False, ecosystem_level: str | None = None
) -> logging.Logger:
    """As ``configure_logging``, and the root logger goes the same way, at the same level. For a
    process that nobody else has started and set up.

    Args:
        ecosystem_level: of loggers named ``vllm`` and ``vllm.*``, in place of ``level``.
    """
    logger = configure_logging(level, role, color=color)
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, RootHandler):
            root.removeHandler(handler)
    root.addHandler(RootHandler(logger.handlers[-1]))
    root.setLevel(level)
    logging.getLogger(ECOSYSTEM).setLevel(ecosystem_level or level)
    return logger


def log_host(host: Host) -> None:
    """What an operator should know of plugins: overrides, closed endpoints, what they changed."""
    for line in host.warnings:
        logger.warning("%s", line)
