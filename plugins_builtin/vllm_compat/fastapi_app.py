"""The FastAPI application to which endpoint plugins add their routes, and what it needs to be ours.

Imported only where such a plugin is served: nothing else needs FastAPI.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from hookserve.server.errors import ApiError, cut
from hookserve.server.owned_route import unguarded

_Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


class GuardedApp(FastAPI):
    """Its router serves every route in its guard, which FastAPI would not look into."""

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes as they were made, for ``openapi()`` and for plugins that look at them. While
        plugins attach theirs it is the list itself, which some add to."""
        routes = self.router.routes
        plain = [unguarded(each) for each in routes]
        return routes if plain == routes else plain


def make_application(routes: Sequence[BaseRoute]) -> GuardedApp:
    """An application with these routes, without pages of its own."""
    return GuardedApp(
        title="hookserve",
        routes=list(routes),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={RequestValidationError: on_validation_error},
    )


async def on_validation_error(request: Request, error: Exception) -> Response:
    """Exception handler: 422 in the server's envelope, without what the client sent."""
    del request
    assert isinstance(error, RequestValidationError)
    faults = [(".".join(map(str, each["loc"])), str(each["msg"])) for each in error.errors()]
    message = "; ".join(f"{where}: {what}" for where, what in faults)
    where = cut(faults[0][0]) if faults else None
    return ApiError(422, cut(message), param=where, code="invalid_value").response()


def parts_of(route: BaseRoute) -> Sequence[BaseRoute]:
    """The plain routes that one stands for. An included router is one route, since FastAPI 0.137;
    before that it was copied."""
    contexts = getattr(route, "effective_route_contexts", None)
    if contexts is None:
        return (route,)
    return [each.starlette_route or _plain(each) for each in contexts()]


def _plain(context: Any) -> Route:
    """A route of an included router as it is with the router's prefix; it tells, and answers
    nothing itself."""
    plain = Route(
        context.path,
        context.endpoint,
        methods=sorted(context.methods or ()),
        name=context.name,
        include_in_schema=context.include_in_schema,
    )
    for name in ("summary", "description"):
        setattr(plain, name, getattr(context, name))
    return plain


class HeldLifespan:
    """The startup and shutdown handlers, and the lifespans of routers, that one plugin adds to an
    application, apart from those of others: each plugin's fail alone."""

    def __init__(self, app: Starlette) -> None:
        self._app = app
        self._startup: list[Callable[[], Any]] = []
        self._shutdown: list[Callable[[], Any]] = []
        self._context: _Lifespan = self._handlers

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within the block what is added goes here."""
        router: Any = self._app.router
        before = (router.on_startup, router.on_shutdown, router.lifespan_context)
        router.on_startup, router.on_shutdown = self._startup, self._shutdown
        router.lifespan_context = self._context
        try:
            yield
        finally:
            self._context = router.lifespan_context
            router.on_startup, router.on_shutdown, router.lifespan_context = before

    def entered(self) -> AbstractAsyncContextManager[Mapping[str, Any] | None]:
        return self._context(self._app)

    @contextlib.asynccontextmanager
    async def _handlers(self, app: Any) -> AsyncIterator[None]:
        del app
        await _call_all(self._startup)
        try:
            yield
        finally:
            await _call_all(self._shutdown)


async def _call_all(handlers: Sequence[Callable[[], Any]]) -> None:
    for handler in handlers:
        answer = handler()
        if inspect.isawaitable(answer):
            await answer
