"""``EndpointSet``: the routes of every endpoint, each with its owner, in one order without overlap.

What the routes do is theirs; which endpoints are open was decided when the plugins were loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.hookspecs import Claim, Denied, Host, PluginConflictError, PluginError
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.notify_loop import caught

from .errors import ApiError, ReplyCutShort
from .exchange import Exchange
from .plugin_tasks import PluginExit
from .route_access import CoreRoute, Needs, needs_of_plugin, refusal_of, send_refusal

logger = logging.getLogger("hookserve.server.endpoint_set")

SUPPORTED_TASKS = ("generate",)
INIT_BUDGET_S = 60.0
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


class _Key(NamedTuple):
    path: str
    method: str


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
            if served.claim.plugin.state == "active" and hasattr(served.instance, "init_state"):
                failure = await self._init_one(served, client, state, settings)
                if failure is not None:
                    _deny(self._host, served.claim, "run", f"init_state: {failure}")
                    self.drop_inactive()

    async def _init_one(
        self, served: Served, client: EngineClient, state: State, settings: Any
    ) -> str | None:
        """What went wrong, or nothing."""
        try:
            with self._host.enter(served.claim.plugin):
                async with asyncio.timeout(INIT_BUDGET_S) as budget:
                    await served.instance.init_state(client, state, settings)
        except caught() as error:
            if client.errored:
                raise client.dead_error from error
            if budget.expired():
                return f"it took more than {INIT_BUDGET_S:g} s"
            return _describe(error)
        return None

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
            stop = getattr(served.instance, "shutdown", None)
            if stop is None:
                continue
            try:
                with self._host.enter(served.claim.plugin):
                    async with asyncio.timeout(SHUTDOWN_BUDGET_S):
                        await stop()
            except caught() as error:
                logger.warning(
                    "plugin %s: shutdown of endpoint %s: %s",
                    served.claim.owner,
                    served.claim.name,
                    _describe(error),
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
        factory = host.registry("endpoint").resolve(claim.name)
        with host.enter(claim.plugin):
            instance = factory()
            routes = tuple(instance.routes())
        wrong = [route for route in routes if not isinstance(route, BaseRoute)]
        if wrong:
            raise TypeError(f"routes() gave a {type(wrong[0]).__name__}; expected Starlette routes")
    except PluginError as error:
        _deny(host, claim, error.stage, error.message)
        return None
    except caught() as error:
        _deny(host, claim, "run", f"endpoint {claim.name}: {_describe(error)}")
        return None
    return Served(claim, instance, routes)


def _deny(host: Host, claim: Claim, stage: str, message: str) -> None:
    host.deny(Denied(claim.owner, "front", stage, message))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _arrange(served: Iterable[Served]) -> list[BaseRoute]:
    """Built-in routes, then the plugins'.

    Raises:
        PluginConflictError: two plugins claim the same path and method.
    """
    all_served = list(served)
    taken: dict[_Key, str] = {}
    added: list[OwnedRoute] = []
    for each in all_served:
        if each.is_builtin:
            continue
        for route in each.routes:
            for key in _keys(route):
                _take(taken, key, each.claim.owner)
            needs = needs_of_plugin(route, _stood_in_for(route, all_served))
            added.append(OwnedRoute(route, each.claim, needs))
    core: list[BaseRoute] = []
    for each in all_served:
        if each.is_builtin:
            core += [route for route in each.routes if not _is_replaced(route, taken)]
    for route in added:
        _warn_if_hidden(route, core)
    return [*map(CoreRoute, core), *added]


def _stood_in_for(route: BaseRoute, all_served: Iterable[Served]) -> list[BaseRoute]:
    """The built-in routes that a plugin's route replaces."""
    keys = set(_keys(route))
    return [
        core
        for each in all_served
        if each.is_builtin
        for core in each.routes
        if keys & set(_keys(core))
    ]


def _warn_if_hidden(added: OwnedRoute, core: Iterable[BaseRoute]) -> None:
    if not isinstance(added.route, Route):
        return
    for key in _keys(added.route):
        for route in core:
            if (
                isinstance(route, Route)
                and key.method in (route.methods or ())
                and route.path_regex.match(key.path)
            ):
                logger.warning(
                    "%s %s of %s is never reached: the built-in route %s comes first",
                    key.method,
                    key.path,
                    added.claim.owner,
                    route.path,
                )


def _take(taken: dict[_Key, str], key: _Key, owner: str) -> None:
    other = taken.setdefault(key, owner)
    if other != owner:
        raise PluginConflictError(
            f"{key.method} {key.path} is claimed by {other} and by {owner}; open one of them only"
        )


def _is_replaced(route: BaseRoute, taken: dict[_Key, str]) -> bool:
    keys = _keys(route)
    owners = {taken[key] for key in keys if key in taken}
    if not owners:
        return False
    for key in keys:
        logger.warning(
            "%s %s: %s overrides the built-in route", key.method, key.path, ", ".join(owners)
        )
    return True


def _keys(route: BaseRoute) -> list[_Key]:
    if not isinstance(route, Route):
        return []
    methods = route.methods or {"GET"}
    return [_Key(route.path, method) for method in sorted(methods) if method != "HEAD"]


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
                    _describe(error),
                )
            return Match.NONE, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        return self.route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refusal_of(scope, self.needs)
        if refusal is not None:
            await send_refusal(refusal, scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        task = asyncio.current_task()
        if task is not None:
            task.set_name(f"{scope['path']} of plugin {self.claim.owner}")
        try:
            with enter(self.claim.plugin):
                await self.route.handle(scope, exchange.receive, exchange.send)
                exchange.check_end()
        except (HTTPException, ApiError, EngineDeadError, RequestError, ClientDisconnect):
            raise
        except caught() as error:
            logger.exception(
                "plugin %s: endpoint %s failed at %s",
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
