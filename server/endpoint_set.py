"""``EndpointSet``: every open endpoint, built, given the engine, and ended.

What the routes do is theirs, their order is ``route_order``'s; which endpoints are open was decided
when the plugins were loaded.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import State
from starlette.routing import BaseRoute

from hookserve.engine.prompt_client import SUPPORTED_TASKS, PromptClient
from hookserve.hookspecs import Claim, Denied, Host, PluginError
from hookserve.hookspecs.deadline import OutOfTimeError, within
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin_thread import build_within

from .attaching import (
    Additions,
    Attachment,
    Lifespan,
    ServerFacts,
    gathering,
    is_attaching,
    make_application,
)
from .owned_route import Surroundings
from .plugin_layers import Layer
from .route_order import Served, arrange, catch_all, core_routes
from .route_paths import ANY, WEBSOCKET

logger = logging.getLogger("hookserve.server.endpoint_set")

SHUTDOWN_BUDGET_S = 2.0


class EndpointSet:
    """Built once, before the engine starts.

    Attributes:
        routes: the list to serve, as ``route_order`` arranges it.
        app: the outer application, which serves that list. Handlers and layers are ``app``'s to
            add.
    """

    def __init__(self, host: Host, served: Sequence[Served], app: Starlette) -> None:
        self._host = host
        self._served = list(served)
        self._lifespans: list[tuple[Served, Lifespan]] = []
        self._told: set[str] = set()
        self.app = app
        self.routes: list[BaseRoute] = []
        self._arrange()
        app.router.routes = self.routes

    @classmethod
    def build(cls, host: Host, facts: ServerFacts | None = None) -> EndpointSet:
        """Call every open endpoint's factory. One that fails puts its plugin out.

        Args:
            facts: for endpoints that add their routes by themselves.

        Raises:
            RequiredPluginError: that plugin is required.
            PluginConflictError: two plugins claim the same path and method.
        """
        built = [_build_one(host, claim) for claim in host.registry("endpoint").claims()]
        # A plugin that failed in one endpoint is out with all of them.
        served = _active(each for each in built if each is not None)
        app, attached = _attach_all(host, served, facts)
        return cls(host, _active(attached), app)

    def layers(self) -> list[Layer]:
        """The middleware that endpoints added, each in its guard, the outermost first. One that
        cannot be built puts its plugin out.

        Raises:
            RequiredPluginError: that plugin is required.
        """
        budget_s = self._host.settings.startup_hook_timeout_s
        layers = []
        for served in self._served:
            for middleware in () if served.attachment is None else served.attachment.middleware:
                try:
                    layers.append(Layer.of_application(middleware, served.claim.plugin, budget_s))
                except PluginError as error:
                    _deny(self._host, served.claim, error.stage, error.message)
        self.drop_inactive()
        return [layer for layer in layers if layer.is_active]

    async def init_state(self, client: PromptClient, state: State, settings: Any) -> None:
        """Give each endpoint the engine, then enter the lifespans of what was attached; one that
        fails, or takes too long, is served no more.

        Raises:
            RequiredPluginError: its plugin is required.
            EngineDeadError: the engine died meanwhile, which is no endpoint's fault.
        """
        if self.app.middleware_stack is None:
            # What is added to it from here on is refused: it would stand before the server's own.
            self.app.middleware_stack = self.app.build_middleware_stack()
        for served in list(self._served):
            if served.claim.plugin.state == "active":
                work = self._init_one(served, client, state, settings)
                await self._give(served, client, "init_state", "it", work)
        for served in list(self._served):
            if served.attachment is not None and served.claim.plugin.state == "active":
                work = self._enter_lifespan(served, served.attachment)
                await self._give(served, client, "startup handlers", "they", work)

    async def _init_one(
        self, served: Served, client: PromptClient, state: State, settings: Any
    ) -> None:
        init = getattr(served.instance, "init_state", None)
        if init is not None:
            budget_s = self._host.settings.startup_hook_timeout_s
            name = f"init_state of endpoint {served.claim.name} of {served.claim.owner}"
            await within(budget_s, _awaitable(init(client, state, settings)), name)

    async def _enter_lifespan(self, served: Served, attachment: Attachment) -> None:
        budget_s = self._host.settings.startup_hook_timeout_s
        lifespan = Lifespan(served.instance.lifespan())
        try:
            name = f"startup handlers of endpoint {served.claim.name}"
            attachment.around.state = await within(budget_s, lifespan.enter(), name)
        except OutOfTimeError:
            lifespan.cancel()
            raise
        self._lifespans.append((served, lifespan))

    async def _give(
        self,
        served: Served,
        client: PromptClient,
        what: str,
        they: str,
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Do what gives an endpoint the engine, and guard what it adds meanwhile; go on without it
        where it fails.

        Args:
            what, they: what fails then, for the operator.

        Raises:
            RequiredPluginError: its plugin is required, and is out.
            EngineDeadError: the engine is what is gone.
            PluginConflictError: another plugin has a path and method that it added.
        """
        try:
            with self._host.enter(served.claim.plugin):
                with gathering(self.app, served.claim.owner) as late:
                    await work
                grown = _with_late(served, late)
                fault = _catch_all(grown, core_routes(self._served)) if late.routes else None
        except caught() as error:
            if client.errored:
                raise client.dead_error from error
            budget_s = self._host.settings.startup_hook_timeout_s
            is_late = isinstance(error, OutOfTimeError)
            said = f"{they} took more than {budget_s:g} s" if is_late else describe_error(error)
            fault = f"{what}: {said}"
        else:
            self._served[self._served.index(served)] = grown
        if fault is not None:
            _deny(self._host, served.claim, "run", f"endpoint {served.claim.name}: {fault}")
            self.drop_inactive()
        elif late.routes:
            self._arrange()

    def _arrange(self) -> None:
        """
        Raises:
            PluginConflictError: two plugins claim the same path and method.
        """
        self.routes[:] = arrange(self._served, self._tell)

    def _tell(self, line: str) -> None:
        """Warn of routes, once: they are arranged anew when one comes or goes."""
        if line not in self._told:
            self._told.add(line)
            logger.warning("%s", line)

    @property
    def may_open_websockets(self) -> bool:
        """Whether a plugin has a route for them, or may: of what is mounted, and of what is still
        to be attached, nobody knows."""
        return any(
            each.attachment is not None
            or any(key.method in (WEBSOCKET, ANY) for key in each.claimed())
            for each in self._served
            if not each.is_builtin
        )

    def websockets(self) -> list[str]:
        """The WebSocket routes, each with its owner: not every HTTP server speaks with them."""
        return [
            f"{key} of {served.claim.owner}"
            for served in self._served
            for key in served.claimed()
            if key.method == WEBSOCKET
        ]

    def drop_inactive(self) -> None:
        """Serve no more what belongs to plugins that are out by now: they may fail in another
        process, after their routes were built here."""
        active = _active(self._served)
        if len(active) < len(self._served):
            self._served = active
            self._arrange()

    async def shutdown(self) -> None:
        """Leave the lifespans, then call each endpoint's ``shutdown``, each guarded alone and
        within its budget."""
        for served, lifespan in reversed(self._lifespans):
            try:
                with self._host.enter(served.claim.plugin):
                    name = f"shutdown handlers of endpoint {served.claim.name}"
                    await within(SHUTDOWN_BUDGET_S, lifespan.leave(), name)
            except caught() as error:
                _warn_of_end(served.claim, "shutdown handlers", error)
        self._lifespans.clear()
        for served in self._served:
            try:
                with self._host.enter(served.claim.plugin):
                    stop = getattr(served.instance, "shutdown", None)
                    if stop is not None:
                        name = f"shutdown of endpoint {served.claim.name} of {served.claim.owner}"
                        await within(SHUTDOWN_BUDGET_S, _awaitable(stop()), name)
            except caught() as error:
                _warn_of_end(served.claim, "shutdown", error)


def _build_one(host: Host, claim: Claim) -> Served | None:
    if _does_none(claim, getattr(claim.declaration, "required_tasks", None)):
        return None
    try:
        served = _make(host, claim)
        # One that was written for another host says it in the object that its factory makes.
        required = served.instance.required_tasks if is_attaching(served.instance) else None
        return None if _does_none(claim, required) else served
    except PluginError as error:
        _deny(host, claim, error.stage, error.message)
    except caught() as error:
        _deny(host, claim, "run", f"endpoint {claim.name}: {describe_error(error)}")
    return None


def _does_none(claim: Claim, required: Sequence[str] | None) -> bool:
    """Whether the model has none of the tasks that an endpoint is for; then that is told."""
    if required is None or set(required) & set(SUPPORTED_TASKS):
        return False
    why = "required_tasks names none; None is for every model"
    if required:
        why = f"the model does none of {', '.join(required)}"
    logger.info("endpoint %s of %s is not served: %s", claim.name, claim.owner, why)
    return True


def _make(host: Host, claim: Claim) -> Served:
    """A plugin's factory runs in a thread: it cannot be interrupted, but left alone."""
    factory = host.registry("endpoint").resolve(claim.name)

    def make() -> Served:
        with host.enter(claim.plugin):
            instance = factory()
            if is_attaching(instance):
                return Served(claim, instance, ())
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


def _attach_all(
    host: Host, served: Sequence[Served], facts: ServerFacts | None
) -> tuple[Starlette, list[Served]]:
    """The outer application, and the endpoints with the routes that they add to it by themselves;
    without those that fail at that."""
    core = core_routes(served)
    routes = [route for route, _ in core]
    app = make_application((each.instance for each in served), routes)
    done: list[Served] = []
    for each in served:
        try:
            attached = _attach_one(host, app, each, core, facts)
        except PluginError as error:
            _deny(host, each.claim, error.stage, error.message)
            # Its thread goes on with that application, which is left to it.
            left, app = app, make_application((each.instance for each in served), routes)
            app.state = left.state
            kept = [route for one in done if one.attachment for route in one.routes]
            app.router.routes = [*kept, *routes]
            continue
        if attached is not None:
            done.append(attached)
    return app, done


def _attach_one(
    host: Host,
    app: Starlette,
    served: Served,
    core: Sequence[tuple[BaseRoute, str]],
    facts: ServerFacts | None,
) -> Served | None:
    """The endpoint with the routes that it adds by itself; nothing, where it fails at that.

    Raises:
        PluginError: it took too long, and may not have ended.
    """
    claim = served.claim
    if not is_attaching(served.instance):
        return served

    def work() -> Served | str:
        with host.enter(claim.plugin):
            try:
                with gathering(app, claim.owner) as added:
                    served.instance.attach(app, facts)
            except caught() as error:
                return describe_error(error)
            attachment = Attachment(Surroundings(added.handlers), added.middleware)
            attached = replace(served, routes=tuple(added.routes), attachment=attachment)
            fault = _catch_all(attached, core)
            if fault is None:
                app.router.routes = [*added.routes, *app.router.routes]
            return fault or attached

    budget_s = host.settings.startup_hook_timeout_s
    what = f"endpoint {claim.name}"
    outcome: Served | str = build_within(budget_s, claim.owner, what, work)
    if isinstance(outcome, Served):
        return outcome
    _deny(host, claim, "run", f"{what}: {outcome}")
    return None


def _catch_all(served: Served, core: Sequence[tuple[BaseRoute, str]]) -> str | None:
    """Why the routes that an endpoint attached cannot come before the built-in ones, if so."""
    if served.attachment is None:
        return None  # it comes behind them
    try:
        return catch_all(served, core)
    except caught() as error:  # its routes compare paths
        return describe_error(error)


def _with_late(served: Served, late: Additions) -> Served:
    if served.attachment is not None:
        around = served.attachment.around
        around.handlers = {**around.handlers, **late.handlers}
    return replace(served, routes=(*served.routes, *late.routes))


def _active(served: Iterable[Served]) -> list[Served]:
    return [each for each in served if each.claim.plugin.state == "active"]


def _warn_of_end(claim: Claim, what: str, error: BaseException) -> None:
    logger.warning(
        "plugin %s: %s of endpoint %s: %s", claim.owner, what, claim.name, describe_error(error)
    )


def _awaitable(answer: Any) -> Awaitable[Any]:
    """What a method that must be a coroutine function returned."""
    if not inspect.isawaitable(answer):
        raise TypeError(f"it returned {type(answer).__name__}, expected an `async def`")
    return answer


def _deny(host: Host, claim: Claim, stage: str, message: str) -> None:
    host.deny(Denied(claim.owner, "front", stage, message))
