"""Endpoints that add their routes to the application by themselves, and the application they need.

Most endpoints give their routes (``hookspecs.types.EndpointInstance``). One that was written for
another framework, which is built on Starlette's, wants an application of that framework to add
them to; what it added comes before the built-in routes then. Nothing here knows any framework.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from hookserve.engine.config import EngineConfig

from .owned_route import Surroundings
from .settings import ServerSettings

logger = logging.getLogger("hookserve.server.attaching")


@dataclass(frozen=True)
class ServerFacts:
    """What is known of the server before its engine is there."""

    settings: ServerSettings
    engine_config: EngineConfig


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


def is_attaching(instance: Any) -> bool:
    return hasattr(instance, "make_application")


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
            app: Starlette = instance.make_application(routes)
            return app
    return Starlette(routes=routes)


def attach(
    app: Starlette, instance: AttachingEndpoint, owner: str, facts: ServerFacts | None
) -> tuple[list[BaseRoute], Attachment]:
    """Have an endpoint add its routes; what it added. The application is left with these alone,
    before the routes that it had: handlers and middleware are the caller's to put in their place.

    Raises:
        whatever ``attach`` raises, and nothing of it is left in the application.
    """
    before = list(app.router.routes)
    handlers, middleware = dict(app.exception_handlers), list(app.user_middleware)
    known = set(map(id, before))
    added: list[BaseRoute] = []
    try:
        instance.attach(app, facts)
        after = list(app.router.routes)
        added += [route for route in after if id(route) not in known]
        _tell_of_missing(owner, before, after)
        own = {
            key: handler
            for key, handler in app.exception_handlers.items()
            if handlers.get(key) is not handler
        }
        layers = [each for each in app.user_middleware if each not in middleware]
    finally:
        app.exception_handlers, app.user_middleware = handlers, middleware
        app.router.routes = [*added, *before]
    return added, Attachment(Surroundings(own), layers)


def detach(app: Starlette, routes: Iterable[BaseRoute]) -> None:
    gone = set(map(id, routes))
    app.router.routes = [route for route in app.router.routes if id(route) not in gone]


def _tell_of_missing(owner: str, before: Sequence[BaseRoute], after: Sequence[BaseRoute]) -> None:
    there = set(map(id, after))
    gone = [getattr(route, "path", str(route)) for route in before if id(route) not in there]
    if gone:
        logger.warning(
            "plugin %s: it took the routes %s away, which are not its own and stay; a route of "
            "the same path and method replaces one",
            owner,
            ", ".join(gone),
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
            whatever it raises before that.
        """
        self._entered = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        first: set[asyncio.Future[Any]] = {self._task, self._entered}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if self._entered.done():
            return self._entered.result() or {}
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
