"""``build_app`` for packages that wrap it to add routes or middleware, as was done before endpoint
plugins.

A wrapper that a general plugin puts in its place is called when the server makes its application,
as an endpoint of that plugin: it is served where the operator opens it.
"""

from __future__ import annotations

import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs import declare

from .endpoints import FastAPIEndpoint, need_fastapi

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.applications import Starlette

    from hookserve.server.attaching import ServerFacts

NAME = "vllm:build_app"
MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.app")
"""Where it stands; the first is the older path, at which it is wrapped most."""

_being_made: ContextVar[Starlette | None] = ContextVar("hookserve_app_being_made", default=None)


def build_app(
    args: Namespace, supported_tasks: Iterable[str] | None = None, model_config: Any = None
) -> FastAPI:
    """The application that the server is making, for what wraps this function.

    Raises:
        RuntimeError: the server is making none; nobody else can have one of it.
    """
    del args, supported_tasks, model_config
    app: Any = _being_made.get()
    if app is None:
        raise RuntimeError(
            "build_app: the server makes its application itself, and calls what wraps this "
            "function then; expected no other call. hookserve.server.build_app makes one for "
            "another ASGI server"
        )
    return app  # type: ignore[no-any-return]


def find_wrapper() -> Callable[..., Any] | None:
    """What stands in the place of ``build_app`` in this process, if anything does."""
    for name in MODULES:
        found: Callable[..., Any] | None = getattr(sys.modules.get(name), "build_app", None)
        if found is not None and found is not build_app:
            return found
    return None


def declare_wrapper(before: Callable[..., Any] | None) -> None:
    """Have the server call a wrapper that the plugin whose code is running has put there.

    Args:
        before: what was there before it ran.
    """
    if find_wrapper() is not before:
        declare("endpoint", NAME, f"{__name__}:WrappedApp")


class WrappedApp(FastAPIEndpoint):
    """What the server builds of a wrapper (``hookserve.server.attaching``)."""

    def __init__(self) -> None:
        need_fastapi("what wraps build_app adds")
        super().__init__()

    def attach(self, app: Starlette, facts: ServerFacts | None) -> None:
        """Call the wrapper, and keep its startup and shutdown handlers apart.

        Raises:
            RuntimeError: there is none any more.
            TypeError: it returns another application.
        """
        from hookserve.engine.prompt_client import SUPPORTED_TASKS

        from .endpoint_arguments import arguments_of

        args = Namespace() if facts is None else arguments_of(facts.settings, facts.engine_config)
        wrapper = find_wrapper()
        if wrapper is None:
            raise RuntimeError("what wrapped build_app was taken away again after it was loaded")
        token = _being_made.set(app)
        try:
            with self._hold_lifespan(app).held():
                made = _call(wrapper, args, SUPPORTED_TASKS, None)
        finally:
            _being_made.reset(token)
        if made is not app:
            raise TypeError(
                f"its build_app returned a {type(made).__name__}; expected the application that "
                "the wrapped function returns"
            )


def _call(wrapper: Callable[..., Any], *arguments: Any) -> Any:
    """With as many arguments as it takes: releases of vLLM gave it one, two and three."""
    signature = inspect.signature(wrapper)
    for count in range(len(arguments), 1, -1):
        try:
            signature.bind(*arguments[:count])
        except TypeError:
            continue
        return wrapper(*arguments[:count])
    return wrapper(arguments[0])
