"""The errors that a person can cause, each with the exit code that it ends the program with.

A message says who, what was given, what was expected, and what to do. Programming errors are
not here: they are assertions.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookserve.hookspecs.settings import Denied

EX_USAGE = 2
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_IOERR = 74
EX_TEMPFAIL = 75
EX_CONFIG = 78

MAX_VALUE_LEN = 200
"""Characters of somebody's value that a message repeats."""


class HookserveError(Exception):
    """Base of every error whose message is meant for the operator."""

    exit_code = 1


class ConfigError(HookserveError):
    """A setting, or a combination of settings, that cannot work."""

    exit_code = EX_CONFIG


class UsageError(HookserveError):
    """A flag or an argument that is wrong in itself."""

    exit_code = EX_USAGE


class ModelFileError(HookserveError):
    """A model's file that is missing, unreadable, corrupt, or of a kind that is not supported.
    The message names the file and, where there is one, the tensor."""

    exit_code = EX_IOERR


class ModelSourceError(HookserveError):
    """A model reference that could not be fetched."""

    exit_code = EX_TEMPFAIL


class UnknownArchitectureError(ConfigError, ValueError):
    """No plugin registered the checkpoint's architecture."""


class EngineDeadError(HookserveError):
    """The engine process ended or stalled; every request ends with this."""

    exit_code = EX_SOFTWARE


class EngineStartError(HookserveError):
    """The engine process did not come up; ``exit_code`` is the one that it asked for."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RequestError(HookserveError):
    """One request that the engine does not take; others are not concerned.

    Attributes:
        param: the argument or field that is wrong, if it is one.
        code: a word that a program may test, if there is one.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequestError(RequestError, ValueError):
    """The caller's fault: asked again, it fails again."""


class NotServedError(RequestError, NotImplementedError):
    """Something that the ecosystem's engines can do and this one cannot."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="not_served")


class QueueFullError(RequestError):
    """Too many requests are unfinished; the same one may be taken later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="queue_full")


class _Shortener(reprlib.Repr):
    """Python itself refuses to write out whole numbers of thousands of digits."""

    def repr_int(self, x: int, level: int) -> str:
        bits = x.bit_length()
        if bits > 4 * MAX_VALUE_LEN:
            return f"a whole number of {bits} bits"
        return super().repr_int(x, level)


_SHORT = _Shortener()
_SHORT.maxlevel = 8
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = MAX_VALUE_LEN // 2
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 2 * MAX_VALUE_LEN


def cut(value: Any, limit: int = MAX_VALUE_LEN) -> str:
    """``value`` as text of at most ``limit`` characters. No more than that is ever written out:
    what people send may be millions of items long, or hundreds of levels deep."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class WorkerError(HookserveError):
    """What a worker process said when it could not do what it was asked, or how it ended;
    ``exit_code`` is the one that it asked for, ``failures`` the plugin whose code ran when it ended
    without a word."""

    def __init__(self, message: str, exit_code: int = EX_SOFTWARE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.failures: list[Denied] = []


class WorkerPluginsError(HookserveError):
    """Plugins failed in a worker process and not in the engine's: everything is to be started
    again without them."""

    exit_code = EX_CONFIG

    def __init__(self, failures: Sequence[Denied]) -> None:
        shown = "; ".join(f"{each.identity} ({each.stage}: {each.error})" for each in failures)
        super().__init__(f"plugins failed in a worker process: {shown}")
        self.failures = list(failures)
