"""Endpoints that add their routes to the application by themselves, and the application they need.

Most endpoints give their routes (``hookspecs.types.EndpointInstance``). One that was written for
another framework, which is built on Starlette's, wants an application of that framework to add
them to; what it added comes before the built-in routes then. Nothing here knows any framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, runtime_checkable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from hookserve.engine.config import EngineConfig

from .owned_route import Surroundings, unguarded
from .settings import ServerSettings

logger = logging.getLogger("hookserve.server.attaching")

SERVERS_STATE = (
    *("serving", "health", "credentials", "engine_client", "vllm_config", "plugins"),
    "io_processor",
)
"""Names in ``app.state`` that the server's own routes, and every endpoint, find there."""


@dataclass(frozen=True)
class ServerFacts:
    """What is known of the server before its engine is there."""

    settings: ServerSettings
    engine_config: EngineConfig


@runtime_checkable
class AttachingEndpoint(Protocol):
    """What the factory of such an endpoint returns, in place of ``EndpointInstance``; it may have
    that one's ``init_state`` and ``shutdown`` too."""

    required_tasks: Sequence[str] | None
    """As in ``Endpoint``, where the instance alone knows it."""

    def make_application(self, routes: Sequence[BaseRoute]) -> Starlette:
        """The outer application. The first such endpoint makes the one for all."""

    def attach(self, app: Starlette, facts: ServerFacts | None) -> None:
        """Add routes, and what belongs to them, to an application that has the built-in ones.
        Without a server there are no facts."""

    def parts_of(self, route: BaseRoute) -> Sequence[BaseRoute]:
        """The plain routes that one of its own stands for: for reports, keys and conflicts."""

    def lifespan(self) -> AbstractAsyncContextManager[Mapping[str, Any] | None]:
        """Entered once the endpoint has its state, left when the server stops; what it yields is
        found in ``request.state``."""


def is_attaching(instance: Any) -> TypeGuard[AttachingEndpoint]:
    return isinstance(instance, AttachingEndpoint)


@dataclass
class Attachment:
    """What an endpoint added beside its routes.

    Attributes:
        around: holds for its own routes alone.
        middleware: the outermost first.
    """

    around: Surroundings = field(default_factory=Surroundings)
    middleware: Sequence[Middleware] = ()


def make_application(instances: Iterable[Any], routes: Sequence[BaseRoute]) -> Starlette:
    """The outer application with the built-in routes; Starlette's own, unless an endpoint needs
    another."""
    for instance in instances:
        if is_attaching(instance):
            return instance.make_application(routes)
    return Starlette(routes=routes)


@dataclass
class Additions:
    """What was added to an application.

    Attributes:
        handlers: of exceptions, by class or status.
        middleware: the outermost first.
    """

    routes: Sequence[BaseRoute] = ()
    handlers: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    middleware: Sequence[Middleware] = ()


@contextlib.contextmanager
def gathering(app: Starlette, owner: str) -> Iterator[Additions]:
    """What is added to the application in the block is known after it, and the application has
    what it had before: all else is the caller's to put in its place. Where the block raises,
    nothing of it is left.

    Raises:
        TypeError: something that the server needs was replaced; it is back.
    """
    router, state, routes = app.router, app.state, app.router.routes
    own = {name: getattr(state, name) for name in SERVERS_STATE if hasattr(state, name)}
    before, handlers, middleware = list(routes), app.exception_handlers, app.user_middleware
    app.exception_handlers, app.user_middleware = dict(handlers), list(middleware)
    added = Additions()
    try:
        yield added
        _refuse_replacements(app, router, state, own)
        after = list(app.router.routes)
        known = set(map(id, map(unguarded, before)))
        added.routes = [route for route in after if id(unguarded(route)) not in known]
        _tell_of_missing(owner, before, after)
        added.handlers = {
            key: handler
            for key, handler in app.exception_handlers.items()
            if handlers.get(key) is not handler
        }
        added.middleware = [each for each in app.user_middleware if each not in middleware]
    finally:
        app.exception_handlers, app.user_middleware = handlers, middleware
        app.router, app.state = router, state
        for name, value in own.items():
            setattr(state, name, value)
        routes[:] = before
        router.routes = routes


def _refuse_replacements(app: Starlette, router: Any, state: Any, own: Mapping[str, Any]) -> None:
    replaced = [] if app.router is router else ["app.router"]
    if app.state is not state:
        replaced.append("app.state")
    for name, value in own.items():
        if getattr(state, name, None) is not value:
            replaced.append(f"app.state.{name}")
    if replaced:
        what = ", ".join(replaced)
        raise TypeError(f"it put something else in the place of {what}, which the server needs")


def _tell_of_missing(owner: str, before: Sequence[BaseRoute], after: Sequence[BaseRoute]) -> None:
    there = set(map(id, map(unguarded, after)))
    missing = [unguarded(route) for route in before if id(unguarded(route)) not in there]
    if missing:
        logger.warning(
            "plugin %s: it took the routes %s away, which are not its own and stay; a route of "
            "the same path and method replaces one",
            owner,
            ", ".join(getattr(route, "path", str(route)) for route in missing),
        )


class Lifespan:
    """One that is entered and left in a task of its own: what it opens may belong to that."""

    def __init__(self, context: AbstractAsyncContextManager[Mapping[str, Any] | None]) -> None:
        self._context = context
        self._is_over = asyncio.Event()
        self._entered: asyncio.Future[Mapping[str, Any] | None]
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> Mapping[str, Any]:
        """What it yields, which is nothing or a mapping.

        Raises:
            TypeError: it yields something else, and is ended.
            whatever it raises before that.
        """
        self._entered = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        first: set[asyncio.Future[Any]] = {self._task, self._entered}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if self._entered.done():
            state: Any = self._entered.result() or {}
            if not isinstance(state, Mapping):
                self.cancel()
                raise TypeError(f"a lifespan yields a {type(state).__name__}; expected a mapping")
            return state
        await self._task
        raise RuntimeError("the lifespan ended before it began")

    async def leave(self) -> None:
        """
        Raises:
            whatever it raises at its end.
        """
        self._is_over.set()
        if self._task is not None:
            await self._task

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        async with self._context as state:
            self._entered.set_result(state)
            await self._is_over.wait()
