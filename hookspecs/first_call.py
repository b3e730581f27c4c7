"""``FirstCall``: whether a Python function was called since it was looked at.

The function stays the object that it is, with its name, its attributes and whoever holds it; only
its code stands back until the first call, which puts it in place again. So nothing is paid
afterwards. Compiled functions and objects that can be called do not tell.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import CodeType, FunctionType, MethodType
from typing import Any

_PLACE = "the bound method that notes the call"


class FirstCall:
    """
    Args:
        function: no generator that ``types.coroutine`` has made awaitable.

    Attributes:
        called: whether it was.
    """

    __slots__ = ("_code", "_function", "_has_signature", "called")

    def __init__(self, function: FunctionType) -> None:
        self.called = False
        self._function = function
        self._code = function.__code__
        self._has_signature = hasattr(function, "__signature__")
        if not self._has_signature:
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        function.__code__ = self._stand_in()

    def _stand_in(self) -> CodeType:
        code = self._code
        kind = code.co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)
        template = _TEMPLATES[kind].__code__
        return template.replace(
            co_consts=tuple(self._note if each == _PLACE else each for each in template.co_consts),
            co_freevars=code.co_freevars,
            co_filename=code.co_filename,
            co_firstlineno=code.co_firstlineno,
            co_name=code.co_name,
        )

    def own_code(self) -> CodeType:
        """The function's, whoever else looks at it too."""
        inner = next((e for e in map(_watcher, self._code.co_consts) if e is not None), None)
        return self._code if inner is None else inner.own_code()

    def _note(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self.called:
            self.called = True
            self._function.__code__ = self._code
            if not self._has_signature:
                del self._function.__signature__  # type: ignore[attr-defined]
        return self._function(*args, **kwargs)


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
    if function.__code__.co_flags & CO_ITERABLE_COROUTINE:
        return None
    try:
        return FirstCall(function)
    except (TypeError, ValueError):  # it has no signature that could be kept
        return None


def code_of(function: FunctionType) -> CodeType:
    """The function's own code, also while something stands in for it."""
    watcher = next((e for e in map(_watcher, function.__code__.co_consts) if e is not None), None)
    return function.__code__ if watcher is None else watcher.own_code()


def _watcher(constant: Any) -> FirstCall | None:
    owner = getattr(constant, "__self__", None)
    return owner if isinstance(owner, FirstCall) else None


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
# ``_PLACE`` becomes the method that notes: no name of the function's own module is needed for it.


def _plain(*args: Any, **kwargs: Any) -> Any:
    call: Any = "the bound method that notes the call"
    return call(*args, **kwargs)


def _generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
    call: Any = "the bound method that notes the call"
    return (yield from call(*args, **kwargs))


async def _coroutine(*args: Any, **kwargs: Any) -> Any:
    call: Any = "the bound method that notes the call"
    return await call(*args, **kwargs)


async def _async_generator(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    call: Any = "the bound method that notes the call"
    inner = call(*args, **kwargs)
    try:
        async for item in inner:
            yield item
    finally:
        await inner.aclose()


_TEMPLATES: dict[int, FunctionType] = {
    0: _plain,  # type: ignore[dict-item]
    CO_GENERATOR: _generator,  # type: ignore[dict-item]
    CO_COROUTINE: _coroutine,  # type: ignore[dict-item]
    CO_ASYNC_GENERATOR: _async_generator,  # type: ignore[dict-item]
}
