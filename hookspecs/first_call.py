"""``FirstCall``: whether a Python function was called since it was looked at.

The function stays the object that it is, with its name, its attributes and whoever holds it; only
its code stands back until the first call, which puts it in place again. So nothing is paid
afterwards. Compiled functions and objects that can be called do not tell.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FunctionType, MethodType
from typing import Any

_KIND = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE

_watched: dict[str, FirstCall] = {}
"""By the keys that their stand-ins hold: code that holds an object cannot be traced by those who
compile it. No two processes have a key in common, but by a fork."""


class FirstCall:
    """
    Attributes:
        called: whether it was.
        code: the function's own.
        stand_in: the code in its place.
    """

    __slots__ = ("_function", "_has_signature", "called", "code", "stand_in")

    def __init__(self, function: FunctionType) -> None:
        self.called = False
        self._function = function
        self._has_signature = hasattr(function, "__signature__")
        if not self._has_signature:
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        self.code = function.__code__
        key = f"{os.getpid()}.{len(_watched)}"
        self.stand_in = _make_stand_in(self.code, key)
        _watched[key] = self
        function.__code__ = self.stand_in

    def note(self) -> FunctionType:
        """What is to be called now. Several threads may be here at once."""
        if not self.called:
            self._function.__code__ = self.code
            if not self._has_signature:
                vars(self._function).pop("__signature__", None)
            self.called = True
        return self._function


def watch_calls(value: Any, host_packages: Callable[[str], bool]) -> FirstCall | None:
    """Look at what was put in the place of something: a function, a method, a property, or a class
    by the constructor of its own.

    Args:
        host_packages: whether a module is the host's; what is called there anyway tells nothing.

    Returns: ``None`` if it does not tell.
    """
    function = function_of(value)
    if function is None:
        return None
    # Not its ``__module__``, which a wrapper takes over from what it wraps.
    if host_packages(str(function.__globals__.get("__name__"))):
        return None
    try:
        return _watcher(function.__code__) or FirstCall(function)
    except (TypeError, ValueError):  # it has no signature that could be kept
        return None


def code_of(function: FunctionType) -> CodeType:
    """The function's own code, also while something stands in for it."""
    watcher = _watcher(function.__code__)
    return function.__code__ if watcher is None else watcher.code


def _watcher(code: CodeType) -> FirstCall | None:
    return next((each for each in list(_watched.values()) if each.stand_in is code), None)


def function_of(value: Any) -> FunctionType | None:
    """The Python function that is called where the value stands in a class or module."""
    if isinstance(value, type):
        value = vars(value).get("__init__")
    elif isinstance(value, staticmethod | classmethod | MethodType):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, FunctionType) else None


# -- what stands in --------------------------------------------------------------------------------


def note_call(key: str) -> FunctionType:
    """Asked by what stands in for a function, on its way to the function.

    Raises:
        RuntimeError: the code alone has come here, from another process.
    """
    found = _watched.get(key)
    if found is None:
        raise RuntimeError(
            "a function in the place of one of the server's was copied from process "
            f"{key.partition('.')[0]} before its first call there, and its code stayed there; "
            "send what it is made of, or call it once before"
        )
    return found.note()


def _template(*args: Any, **kwargs: Any) -> Any:
    # By the module's name, as the names of the function's own module are not these.
    from importlib import import_module

    here = import_module("hookserve.hookspecs.first_call")
    return here.note_call("its key")(*args, **kwargs)


def _make_stand_in(code: CodeType, key: str) -> CodeType:
    """Plain code, which hands on the coroutine or generator that the function makes; marked as the
    function's own is, since ``inspect`` goes by the marks."""
    template = _template.__code__
    constants = (key if each == "its key" else each for each in template.co_consts)
    return template.replace(
        co_consts=tuple(constants),
        co_flags=template.co_flags | code.co_flags & _KIND,
        co_freevars=code.co_freevars,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
