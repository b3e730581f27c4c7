"""``PluginLayers``: the ASGI middleware of plugins and of ``--middleware``, each in its guard.

They stand between the keys and the routes: no request reaches them that is refused for its size,
its sender or the server's phase, and the probes go past them. What a layer passes on reaches the
client as it is, chunk by chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hookserve.hookspecs import Denied, Host, PluginError, RequiredPluginError
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import HostError, describe_error, exc_info_of
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.plugin_thread import build_within

from .errors import ApiError, ReplyCutShort, http_failure
from .exchange import Exchange
from .plugin_tasks import PluginExit
from .request_context import route_path
from .request_guard import PROBES
from .route_access import send_refusal

logger = logging.getLogger("hookserve.server.plugin_layers")

_NAMED = "--middleware names it"
_CULPRIT = "hookserve_culprit"
_ELSEWHERE = object()
_OUTSIDE: ContextVar[Receive | None] = ContextVar("hookserve_outside", default=None)
"""What the layer that runs here is given to read its request."""


class PluginLayers:
    """Built once, before the engine starts; ``wrap`` puts them around an application.

    The order, from the outside: those of ``--middleware``, the last one first, as others do; then
    those of the hook, in call order; then those that endpoints added to the application.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = list(layers)
        self._app: ASGIApp | None = None

    @classmethod
    def build(cls, host: Host, paths: Sequence[str]) -> PluginLayers:
        """Build every layer. One of the hook that fails puts its plugin out.

        Args:
            paths: of ``--middleware``, ``module:attribute`` or with a dot.

        Raises:
            RequiredPluginError: a layer failed that is named by its path, or whose plugin is
                required.
        """
        registry, budget_s = host.registry("middleware"), host.settings.startup_hook_timeout_s
        layers = []
        for claim in registry.claims():
            try:
                target = registry.resolve(claim.name)
                layers.append(Layer.build(claim.name, target, claim.plugin, budget_s))
            except PluginError as error:
                host.deny(Denied(claim.owner, "front", error.stage, error.message))
        declared = {layer.name for layer in layers}
        for path in dict.fromkeys(path.replace(":", ".") for path in paths):
            if path in declared:
                logger.info("--middleware %s: a plugin has put it there already", path)
                continue
            try:
                target = registry.resolve(":".join(path.rsplit(".", 1)))
                layers.insert(0, Layer.build(path, target, None, budget_s))
            except HostError as error:
                said = error.message if isinstance(error, PluginError) else str(error)
                raise RequiredPluginError(path, "import", said, _NAMED) from error
        built = cls(layers)
        built.drop_inactive()  # a plugin that failed in one layer is out with all of them
        return built

    def __bool__(self) -> bool:
        return bool(self._layers)

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The application inside the layers; what they become later counts too."""
        self._app = app
        self._link()
        return self

    def drop_inactive(self) -> None:
        """Forget the layers of plugins that are out by now: they may fail in another process."""
        self._layers = [layer for layer in self._layers if layer.is_active]
        self._link()

    def add(self, layers: Iterable[Layer]) -> None:
        """Put layers inside of those that there are; before ``wrap``."""
        self._layers += layers

    def _link(self) -> None:
        inner = self._app
        for layer in reversed(self._layers):
            layer.inside.app = inner
            inner = layer
        self._outermost = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None and self._outermost is not None
        asked = scope["type"] in ("http", "websocket") and route_path(scope) not in PROBES
        await (self._outermost if asked else self._app)(scope, receive, send)


class Layer:
    """One middleware and whose it is: what it raises fails that request, and names it.

    Args:
        name: its path, with dots.
        plugin: ``None`` for one that is named by its path alone.
        inside: what it was built around.
    """

    def __init__(self, name: str, plugin: Plugin | None, app: ASGIApp, inside: Inside) -> None:
        self.name = name
        self.plugin = plugin
        self.inside = inside
        self._app = app
        self._label = f"middleware {name}" if plugin is None else f"plugin {plugin.identity}"

    @classmethod
    def build(cls, name: str, target: Any, plugin: Plugin | None, budget_s: float) -> Layer:
        """Raises:
        PluginError: it cannot be built, or is no middleware.
        """
        owner = name if plugin is None else plugin.identity
        inside = Inside(plugin)

        def make() -> ASGIApp:
            with enter(plugin):
                return _around(inside, target)

        what = f"middleware {name}"
        try:
            return cls(name, plugin, build_within(budget_s, owner, what, make), inside)
        except PluginError:
            raise
        except caught() as error:
            raise PluginError(owner, "run", f"{what}: {describe_error(error)}") from error

    @classmethod
    def of_application(cls, middleware: Middleware, plugin: Plugin, budget_s: float) -> Layer:
        """One that a plugin added to the application.

        Raises:
            PluginError: it cannot be built, or is no middleware.
        """
        target, args, kwargs = middleware
        name = getattr(target, "__name__", type(target).__name__)
        return cls.build(name, lambda app: target(app, *args, **kwargs), plugin, budget_s)

    @property
    def is_active(self) -> bool:
        return self.plugin is None or self.plugin.state == "active"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, _outside(receive), _outside(send))
        token = _OUTSIDE.set(exchange.receive)
        try:
            with enter(self.plugin):
                await self._app(scope, exchange.receive, exchange.send)
                exchange.check_end()
        except (ReplyCutShort, ClientDisconnect):
            raise
        except caught() as error:
            refusal = self._refusal(scope, error)
            if exchange.is_started or scope["type"] != "http":
                raise ReplyCutShort from None
            await send_refusal(refusal, scope, receive, send)
        finally:
            _OUTSIDE.reset(token)

    def _refusal(self, scope: Scope, error: BaseException) -> ApiError:
        """What the client is told; raises what is not this layer's doing."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, HTTPException):
            return http_failure(scope["method"], route_path(scope), error)
        if getattr(error, _CULPRIT, self.inside) is not self.inside:
            raise error
        logger.error("%s failed at %r", self._label, scope["path"], exc_info=exc_info_of(error))
        cause = error.__cause__ if isinstance(error, PluginExit) else error
        return ApiError(
            500, f"the {self._label} failed with {type(cause).__name__}", code="plugin_error"
        )


class Inside:
    """What a layer is built around: the next layer, or the application."""

    def __init__(self, plugin: Plugin | None) -> None:
        self.app: ASGIApp | None = None
        self._plugin = plugin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None, "a middleware called the application before there is one"
        received = _Received(self._own(receive), self, _OUTSIDE.get())
        try:
            with enter(None):
                await self.app(scope, received, self._own(send))
        except BaseException as error:
            _blame(error, _ELSEWHERE)
            raise

    def _own(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """``receive`` or ``send`` as the layer hands it in: its own code, if it wraps them."""

        async def own(*message: Message) -> Any:
            try:
                with enter(self._plugin):
                    return await call(*message)
            except BaseException as error:
                _blame(error, self)
                raise

        return own


class _Received:
    """What a layer hands on of a request, as the application inside reads it.

    Layers that have read a body often hand it on from memory, at each call, and then there is no
    word of a client that leaves; whoever waits for that would ask for ever, and hold up the event
    loop. So after its end the request goes on with what the layer itself was given.
    """

    def __init__(self, receive: Receive, layer: Inside, outside: Receive | None) -> None:
        self._receive = receive
        self._layer = layer
        self._outside = outside
        self._is_complete = False

    async def __call__(self) -> Message:
        await asyncio.sleep(0)  # what comes from memory never waits, and others must have a turn
        message = await self._receive()
        kind = message.get("type") if isinstance(message, dict) else type(message).__name__
        if kind == "http.request" and not self._is_complete:
            self._is_complete = not message.get("more_body", False)
        elif self._is_complete and kind != "http.disconnect":
            return await self._until_gone()
        elif not isinstance(message, dict) or kind is None:
            error = TypeError(f"it handed on a {kind}; expected an ASGI message")
            _blame(error, self._layer)
            raise error
        return message

    async def _until_gone(self) -> Message:
        receive = self._receive if self._outside is None else self._outside
        while (message := await receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)
        return message


def _outside(call: Callable[..., Any]) -> Callable[..., Any]:
    """``receive`` or ``send`` of what is around a layer, which is not its code."""

    async def elsewhere(*message: Message) -> Any:
        try:
            with enter(None):
                return await call(*message)
        except BaseException as error:
            _blame(error, _ELSEWHERE)
            raise

    return elsewhere


def _blame(error: BaseException, culprit: object) -> None:
    """Note in an exception whose code raised it: the first word counts. Layers call each other
    both ways, and what passes through one is not its doing."""
    if not hasattr(error, _CULPRIT):
        with contextlib.suppress(Exception):  # an exception may refuse attributes
            setattr(error, _CULPRIT, culprit)


def _around(app: ASGIApp, target: Any) -> ASGIApp:
    """The middleware around ``app``: ``target(app)``, or for ``async def f(request, call_next)``
    the layer that calls it.

    Raises:
        TypeError: it is neither.
    """
    if inspect.iscoroutinefunction(target):
        given = inspect.signature(target)
        if len(given.parameters) != 2:
            raise TypeError(
                f"{target.__qualname__}{given} is a coroutine function; expected the arguments "
                "(request, call_next), or a class that is built with (app)"
            )
        from starlette.middleware.base import BaseHTTPMiddleware

        return BaseHTTPMiddleware(app, dispatch=target)
    layer = target(app)
    if not callable(layer):
        raise TypeError(f"it gave a {type(layer).__name__}; expected an ASGI application")
    built: ASGIApp = layer
    return built
