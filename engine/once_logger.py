"""``init_logger``: a logger that can say a line once, as the ecosystem's (vLLM's) loggers can.

Where its lines go is decided in ``log``, as for every other logger.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable
from types import MethodType
from typing import Any, Literal, Protocol, cast

Scope = Literal["process", "global", "local"]
SCOPES: tuple[str, ...] = ("process", "global", "local")
MAX_REMEMBERED = 4096
"""Lines of one logger; with more, all are forgotten and may be said again."""


class OnceLogger(Protocol):
    """What ``init_logger`` gives: a ``logging.Logger`` with these. ``scope`` says who speaks:
    every process, or of several ranks the first alone (``global``, and ``local``, which is the
    same on the one machine that there is)."""

    def debug_once(self, msg: str, *args: Hashable, scope: Scope = "process") -> None: ...

    def info_once(self, msg: str, *args: Hashable, scope: Scope = "process") -> None: ...

    def warning_once(self, msg: str, *args: Hashable, scope: Scope = "process") -> None: ...

    def error_once(self, msg: str, *args: Hashable, scope: Scope = "process") -> None: ...

    def debug(self, msg: object, *args: object, **kwargs: Any) -> None: ...

    def info(self, msg: object, *args: object, **kwargs: Any) -> None: ...

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None: ...

    def error(self, msg: object, *args: object, **kwargs: Any) -> None: ...

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None: ...


def init_logger(name: str) -> OnceLogger:
    """The logger of this name, with ``debug_once``, ``info_once``, ``warning_once`` and
    ``error_once``."""
    found: Any = logging.getLogger(name)
    if "info_once" not in vars(found):  # other libraries put such methods into every logger
        found.said_once = set()
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            method = MethodType(_once(level), found)
            setattr(found, f"{logging.getLevelName(level).lower()}_once", method)
    return cast(OnceLogger, found)


def _once(level: int) -> Any:
    def say(self: Any, msg: str, *args: Hashable, scope: Scope = "process") -> None:
        if scope not in SCOPES:
            raise ValueError(f"scope {scope!r}: expected one of {', '.join(SCOPES)}")
        key = (level, msg, repr(args))
        if key in self.said_once or (scope != "process" and not _is_first_rank()):
            return
        if len(self.said_once) >= MAX_REMEMBERED:
            self.said_once.clear()
        self.said_once.add(key)
        self.log(level, msg, *args, stacklevel=2)

    return say


def _is_first_rank() -> bool:
    """Also where there are no ranks: in front, in an engine, with one worker."""
    ranks: Any = sys.modules.get("torch.distributed")  # who has not imported it is none of several
    if ranks is None or not ranks.is_available() or not ranks.is_initialized():
        return True
    return bool(ranks.get_rank() == 0)
