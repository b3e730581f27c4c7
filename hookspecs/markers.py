"""The two markers: ``hookspec`` for the host, ``hookimpl`` for plugins.

They set the attributes that pluggy's own markers set, so that pluggy's inspection works, and keep
what the host needs beside them. Which functions are accepted is ``checks``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

import msgspec

from .types import Role

PROJECT = "hookserve"
SPEC_ATTRIBUTE = f"{PROJECT}_spec"
IMPL_ATTRIBUTE = f"{PROJECT}_impl"
INFO_ATTRIBUTE = f"{PROJECT}_info"

CallKind = Literal["collect", "first", "pipeline", "notify"]
Failure = Literal["refuse", "request", "observe", "logged", "default"]

F = TypeVar("F", bound=Callable[..., Any])


class HookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the host knows about one hook beyond its signature."""

    name: str
    arguments: tuple[str, ...]
    """What the specification offers besides ``ctx``, in its order."""
    call: CallKind
    roles: tuple[Role, ...]
    failure: Failure
    kind: str | None = None
    """The registry that its declarations fill."""
    expects: tuple[type, ...] = ()
    """What an answer that is not ``None`` must be an instance of; empty: its caller checks."""
    may_await: bool = False
    """Whether an implementation may be a coroutine function."""
    may_buffer: bool = False
    """Whether an implementation may ask for the collected text (``buffer=True``)."""
    may_yield: bool = False
    """Whether an implementation may be a generator function: its answer is an iterator."""

    @property
    def is_of_a_loop(self) -> bool:
        """Whether the loop of an engine or a worker calls it at each step."""
        return self.call == "notify" and self.failure == "observe" and "front" not in self.roles


def hookspec(
    *,
    call: CallKind,
    roles: tuple[Role, ...],
    failure: Failure,
    kind: str | None = None,
    expects: tuple[type, ...] = (),
    may_await: bool = False,
    may_buffer: bool = False,
    may_yield: bool = False,
) -> Callable[[F], F]:
    """Mark a function as the specification of the hook that has its name; its last argument is
    ``ctx``."""

    def mark(function: F) -> F:
        offered = function.__code__.co_varnames[: function.__code__.co_argcount]
        assert offered[-1:] == ("ctx",), f"{function.__name__} must offer ctx"
        info = HookInfo(
            name=function.__name__,
            arguments=offered[:-1],
            call=call,
            roles=roles,
            failure=failure,
            kind=kind,
            expects=expects,
            may_await=may_await,
            may_buffer=may_buffer,
            may_yield=may_yield,
        )
        options = {
            "firstresult": False,
            "historic": False,
            "warn_on_impl": None,
            "warn_on_impl_args": None,
        }
        setattr(function, SPEC_ATTRIBUTE, options)
        setattr(function, INFO_ATTRIBUTE, info)
        return function

    return mark


@overload
def hookimpl(function: F) -> F: ...


@overload
def hookimpl(
    *,
    tryfirst: bool = ...,
    trylast: bool = ...,
    specname: str | None = ...,
    buffer: bool = ...,
) -> Callable[[F], F]: ...


def hookimpl(
    function: F | None = None,
    *,
    tryfirst: bool = False,
    trylast: bool = False,
    specname: str | None = None,
    buffer: bool = False,
) -> F | Callable[[F], F]:
    """Mark a function as an implementation of the hook that has its name.

    Args:
        function: the function, when the marker is used without parentheses.
        tryfirst: call it before the others of its band (third parties, built-ins).
        trylast: call it after the others of its band.
        specname: the hook's name, where the function has another one.
        buffer: only for hooks that pass text on in pieces: collect it and call once.
            Refused at registration on every other hook.
    """

    def mark(target: F) -> F:
        options = {
            "wrapper": False,
            "hookwrapper": False,
            "optionalhook": False,
            "tryfirst": tryfirst,
            "trylast": trylast,
            "specname": specname,
            "buffer": buffer,
        }
        setattr(target, IMPL_ATTRIBUTE, options)
        return target

    return mark if function is None else mark(function)
