"""``EndpointSet``: the routes of every endpoint, each with its owner, in one order without overlap.

What the routes do is theirs; which endpoints are open was decided when the plugins were loaded.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.hookspecs import Claim, Denied, Host, PluginConflictError, PluginError
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.deadline import OutOfTimeError, within
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin_thread import build_within

from .errors import ApiError, ReplyCutShort
from .exchange import Exchange
from .plugin_tasks import PluginExit
from .route_access import CoreRoute, Needs, is_refused, needs_of_plugin
from .route_paths import WEBSOCKET, RouteKey, hides, keys_of

logger = logging.getLogger("hookserve.server.endpoint_set")

SUPPORTED_TASKS = ("generate",)
SHUTDOWN_BUDGET_S = 2.0


@dataclass(frozen=True)
class Served:
    """One endpoint that was built."""

    claim: Claim
    instance: Any
    routes: tuple[BaseRoute, ...]

    @property
    def is_builtin(self) -> bool:
        return self.claim.plugin.is_builtin


class EndpointSet:
    """Built once, before the engine starts. ``routes`` is the list to serve: built-ins first, so
    that no catch-all of a plugin can hide one, without those that a plugin replaces by claiming
    the same path and method."""

    def __init__(self, host: Host, served: Sequence[Served]) -> None:
        self._host = host
        self._served = list(served)
        self.routes = _arrange(served)

    @classmethod
    def build(cls, host: Host, tasks: Sequence[str] = SUPPORTED_TASKS) -> EndpointSet:
        """Call every open endpoint's factory. One that fails puts its plugin out.

        Raises:
            RequiredPluginError: that plugin is required.
            PluginConflictError: two plugins claim the same path and method.
        """
        built = [_build_one(host, claim, tasks) for claim in host.registry("endpoint").claims()]
        # A plugin that failed in one endpoint is out with all of them.
        return cls(host, [s for s in built if s is not None and s.claim.plugin.state == "active"])

    async def init_state(self, client: EngineClient, state: State, settings: Any) -> None:
        """Give each endpoint the engine; one that fails, or takes too long, is served no more.

        Raises:
            RequiredPluginError: its plugin is required.
            EngineDeadError: the engine died meanwhile, which is no endpoint's fault.
        """
        for served in list(self._served):
            if served.claim.plugin.state == "active":
                failure = await self._init_one(served, client, state, settings)
                if failure is not None:
                    _deny(self._host, served.claim, "run", f"init_state: {failure}")
                    self.drop_inactive()

    async def _init_one(
        self, served: Served, client: EngineClient, state: State, settings: Any
    ) -> str | None:
        """What went wrong, or nothing."""
        budget_s = self._host.settings.startup_hook_timeout_s
        try:
            with self._host.enter(served.claim.plugin):
                init = getattr(served.instance, "init_state", None)
                if init is not None:
                    name = f"init_state of endpoint {served.claim.name} of {served.claim.owner}"
                    await within(budget_s, _awaitable(init(client, state, settings)), name)
        except caught() as error:
            if client.errored:
                raise client.dead_error from error
            if isinstance(error, OutOfTimeError):
                return f"it took more than {budget_s:g} s"
            return describe_error(error)
        return None

    def websockets(self) -> list[str]:
        """The WebSocket routes, each with its owner: not every HTTP server speaks with them."""
        return [
            f"{key} of {served.claim.owner}"
            for served in self._served
            for route in served.routes
            for key in keys_of(route)
            if key.method == WEBSOCKET
        ]

    def drop_inactive(self) -> None:
        """Serve no more what belongs to plugins that are out by now: they may fail in another
        process, after their routes were built here."""
        active = [served for served in self._served if served.claim.plugin.state == "active"]
        if len(active) < len(self._served):
            self._served = active
            self.routes[:] = _arrange(active)

    async def shutdown(self) -> None:
        """Call each endpoint's ``shutdown``, each guarded alone and within its budget."""
        for served in self._served:
            try:
                with self._host.enter(served.claim.plugin):
                    stop = getattr(served.instance, "shutdown", None)
                    if stop is not None:
                        name = f"shutdown of endpoint {served.claim.name} of {served.claim.owner}"
                        await within(SHUTDOWN_BUDGET_S, _awaitable(stop()), name)
            except caught() as error:
                logger.warning(
                    "plugin %s: shutdown of endpoint %s: %s",
                    served.claim.owner,
                    served.claim.name,
                    describe_error(error),
                )


def _build_one(host: Host, claim: Claim, tasks: Sequence[str]) -> Served | None:
    required = getattr(claim.declaration, "required_tasks", None)
    if required is not None and not set(required) & set(tasks):
        logger.info(
            "endpoint %s of %s is not served: the model does none of %s",
            claim.name,
            claim.owner,
            ", ".join(required),
        )
        return None
    try:
        return _make(host, claim)
    except PluginError as error:
        _deny(host, claim, error.stage, error.message)
    except caught() as error:
        _deny(host, claim, "run", f"endpoint {claim.name}: {describe_error(error)}")
    return None


def _make(host: Host, claim: Claim) -> Served:
    """A plugin's factory runs in a thread: it cannot be interrupted, but left alone."""
    factory = host.registry("endpoint").resolve(claim.name)

    def make() -> Served:
        with host.enter(claim.plugin):
            instance = factory()
            routes = tuple(instance.routes())
        wrong = [route for route in routes if not isinstance(route, BaseRoute)]
        if wrong:
            raise TypeError(f"routes() gave a {type(wrong[0]).__name__}; expected Starlette routes")
        return Served(claim, instance, routes)

    if claim.plugin.is_builtin:
        return make()
    budget_s = host.settings.startup_hook_timeout_s
    served: Served = build_within(budget_s, claim.owner, f"endpoint {claim.name}", make)
    return served


def _awaitable(answer: Any) -> Awaitable[Any]:
    """What a method that must be a coroutine function returned."""
    if not inspect.isawaitable(answer):
        raise TypeError(f"it returned {type(answer).__name__}, expected an `async def`")
    return answer


def _deny(host: Host, claim: Claim, stage: str, message: str) -> None:
    host.deny(Denied(claim.owner, "front", stage, message))


def _arrange(served: Sequence[Served]) -> list[BaseRoute]:
    """Built-in routes, then the plugins'.

    Raises:
        PluginConflictError: two plugins claim the same path and method.
    """
    core = [
        (route, each.claim.owner) for each in served if each.is_builtin for route in each.routes
    ]
    added: list[OwnedRoute] = []
    taken: dict[RouteKey, tuple[RouteKey, str]] = {}
    for each in served:
        if each.is_builtin:
            continue
        for route in each.routes:
            keys = keys_of(route)
            for key in keys:
                _take(taken, key, each.claim.owner)
            replaced = [other for other, _ in core if not set(keys).isdisjoint(keys_of(other))]
            added.append(OwnedRoute(route, each.claim, needs_of_plugin(route, replaced)))
    kept = [(route, owner) for route, owner in core if not _is_replaced(route, owner, added)]
    before = list(kept)
    for mine in added:
        _warn_if_hidden(mine, before)
        before.append((mine.route, mine.claim.owner))
    return [*(CoreRoute(route) for route, _ in kept), *added]


def _take(taken: dict[RouteKey, tuple[RouteKey, str]], key: RouteKey, owner: str) -> None:
    """Two spellings that differ in slashes alone are one path to whoever types them."""
    other, other_owner = taken.setdefault(key.folded, (key, owner))
    if other_owner == owner:
        return
    spelled = "" if other == key else f", as {other.path} and {key.path}"
    raise PluginConflictError(
        f"{key.folded} is claimed by {other_owner} and by {owner}{spelled}; open one of them only "
        "with --enable-endpoints, or leave one out with --disable-plugins"
    )


def _is_replaced(route: BaseRoute, owner: str, added: Iterable[OwnedRoute]) -> bool:
    """Whether a plugin claims all that a built-in route is; a plugin may replace one."""
    keys = set(keys_of(route))
    owners = {mine.claim.owner for mine in added if not keys.isdisjoint(keys_of(mine.route))}
    for key in sorted(keys) if owners else ():
        logger.warning(
            "%s: %s overrides the built-in route of %s", key, ", ".join(sorted(owners)), owner
        )
    return bool(owners)


def _warn_if_hidden(mine: OwnedRoute, before: Iterable[tuple[BaseRoute, str]]) -> None:
    """Tell a plugin's route that is never reached, for one that comes before it, and one that
    looks like a built-in route and is not it."""
    for key in keys_of(mine.route):
        for route, owner in before:
            if hides(route, key):
                logger.warning(
                    "%s of %s is never reached: %s of %s comes first",
                    key,
                    mine.claim.owner,
                    getattr(route, "path", "") or "/",
                    owner,
                )
                break
            if key not in (others := keys_of(route)) and key.folded in others:
                logger.warning(
                    "%s of %s does not replace %s of %s: their paths differ in slashes, and each "
                    "answers to its own spelling",
                    key,
                    mine.claim.owner,
                    key.folded,
                    owner,
                )


class OwnedRoute(BaseRoute):
    """A plugin's route: what it raises fails that request, and names the plugin."""

    def __init__(self, route: BaseRoute, claim: Claim, needs: Needs) -> None:
        self.route = route
        self.claim = claim
        self.needs = needs
        self._is_reported = False

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        try:
            with enter(self.claim.plugin):
                return self.route.matches(scope)
        except caught() as error:
            if not self._is_reported:
                self._is_reported = True
                logger.warning(
                    "plugin %s: a route of endpoint %s fails to compare paths, and is not served: "
                    "%s",
                    self.claim.owner,
                    self.claim.name,
                    describe_error(error),
                )
            return Match.NONE, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await is_refused(self.needs, scope, receive, send):
            return
        exchange = Exchange(scope, receive, send)
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"{scope['path']!r} of plugin {self.claim.owner}")
        try:
            with enter(self.claim.plugin):
                await self.route.handle(scope, exchange.receive, exchange.send)
                exchange.check_end()
        except (HTTPException, ApiError, EngineDeadError, RequestError, ClientDisconnect):
            raise
        except caught() as error:
            logger.exception(
                "plugin %s: endpoint %s failed at %r",
                self.claim.owner,
                self.claim.name,
                scope["path"],
            )
            if exchange.is_started:
                raise ReplyCutShort from None
            cause = error.__cause__ if isinstance(error, PluginExit) else error
            raise ApiError(
                500,
                f"the plugin {self.claim.owner} failed with {type(cause).__name__}",
                code="plugin_error",
            ) from None
