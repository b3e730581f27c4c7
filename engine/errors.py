"""The errors that a person can cause, each with the exit code that it ends the program with.

A message says who, what was given, what was expected, and what to do. Programming errors are
not here: they are assertions.
"""

from __future__ import annotations

EX_USAGE = 2
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_IOERR = 74
EX_TEMPFAIL = 75
EX_CONFIG = 78


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


class UnknownArchitectureError(ConfigError):
    """No plugin registered the checkpoint's architecture."""


class EngineDeadError(HookserveError):
    """The engine process ended or stalled; every request ends with this."""

    exit_code = EX_SOFTWARE
