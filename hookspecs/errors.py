"""The errors of the plugin host, each with the exit code that it ends the program with.

A message names the plugin, what it gave, what was expected and what to do. Errors of models and
of settings that are not about plugins live in ``hookserve.engine.errors``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

from .patch_owners import passed_patch

EX_CONFIG = 78
_MEANING = "hookserve_meaning"

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class HostError(Exception):
    """Base of every error whose message is meant for the operator."""

    exit_code = EX_CONFIG


class PluginError(HostError):
    """One plugin's fault.

    Args:
        identity: the plugin, ``distribution:group:name``.
        stage: ``"discover"``, ``"import"``, ``"register"`` or ``"run"``.
        message: what happened, one sentence.
    """

    def __init__(self, identity: str, stage: str, message: str) -> None:
        super().__init__(f"plugin {identity} failed at stage '{stage}': {message}")
        self.identity = identity
        self.stage = stage
        self.message = message


class RequiredPluginError(PluginError):
    """A plugin that the operator required, or that the host cannot do without, failed."""

    def __init__(self, identity: str, stage: str, message: str, why: str) -> None:
        super().__init__(identity, stage, message)
        self.args = (f"{self.args[0]} ({why})",)


class PluginConflictError(HostError):
    """Two plugins, or two processes, disagree, and the host must not choose."""


class PluginSelectionError(HostError):
    """An entry of ``--plugins`` and its kin that names no plugin, or more than one."""


class UnknownNameError(HostError):
    """A name that nobody registered."""


class SettingsDifferError(HostError):
    """A second ``bootstrap`` in one process asked for something else than the first."""


def describe_error(error: BaseException) -> str:
    """One line: the exception's type, the first line of its message, and what is known of it."""
    name = type(error).__name__
    try:
        text = str(error).strip().splitlines()
    except BaseException as broken:  # a plugin's exception may fail at telling what it is
        return f"{name} (its text cannot be had: {type(broken).__name__})"
    known = [getattr(error, _MEANING, None), passed_patch(error)]
    more = "".join(f"; {each}" for each in known if isinstance(each, str))
    return printable(f"{name}: {text[0]}{more}" if text else f"{name}{more}")


def printable(text: str) -> str:
    """The text with control characters, and what no encoding has, written as escapes: it goes to
    terminals, files and other processes. Ends of lines and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def explain_error(
    error: BaseException, explain: Callable[[BaseException], str | None] | None
) -> None:
    """Keep with the exception what it means by a host's adapters, for ``describe_error``; it and
    its type stay as they are.

    Args:
        explain: ``Adapters.explain``; asked only where names may be missing.
    """
    if explain is None or getattr(error, _MEANING, None) is not None:
        return
    if not any(isinstance(each, ImportError | AttributeError) for each in causes_of(error)):
        return
    meaning = explain(error)
    if meaning is not None:
        with contextlib.suppress(Exception):  # an exception may refuse attributes
            setattr(error, _MEANING, meaning)


def causes_of(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """The exception, what it was raised from, and so on; each once, as one can be its own cause
    (``raise error from error``).

    Args:
        contexts: go on, too, by what was handled when one was raised from nothing.
    """
    met: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in met:
        met.add(id(at))
        yield at
        at = at.__context__ if contexts and at.__cause__ is None else at.__cause__


def exc_info_of(error: BaseException | None) -> ExcInfo | None:
    """The error for a logger; ``None`` if its traceback cannot be told."""
    import traceback  # only where something failed

    if error is None:
        return None
    try:
        traceback.TracebackException.from_exception(error)
    except BaseException:  # a plugin's exception may fail at telling what it is
        return None
    return type(error), error, error.__traceback__


def traceback_of(error: BaseException) -> str:
    """The traceback as Python prints it; one line if the exception cannot be told."""
    import traceback  # only where something failed

    try:
        return printable("".join(traceback.format_exception(error)))
    except BaseException:  # a plugin's exception may fail at telling what it is
        return f"{describe_error(error)}\n"


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that look most like ``name``, best first."""
    import difflib  # only on the way to an error message

    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=limit, cutoff=0.5)
    return [by_lower[match] for match in found]


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name."""
    close = nearest(name, known)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    if known:
        return f"; known: {', '.join(sorted(known))}"
    return "; there is none"
