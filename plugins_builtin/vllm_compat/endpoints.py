"""Endpoint plugins of vLLM's group: routes that a plugin adds to a FastAPI application itself.

``load`` makes of an entry point what the host registers; ``AttachedEndpoint`` is what the server
builds of it (``hookserve.server.attaching``). What needs FastAPI is ``fastapi_app``'s, and imported
only where such a plugin is loaded.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hookserve.hookspecs import Endpoint, hookimpl

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.datastructures import State
    from starlette.routing import BaseRoute

    from hookserve.engine.prompt_client import PromptClient
    from hookserve.server.attaching import ServerFacts
    from hookserve.server.settings import ServerSettings

    from .fastapi_app import HeldLifespan

logger = logging.getLogger("hookserve.vllm_compat.endpoints")

GROUP = "vllm.endpoint_plugins"
MEMBERS = ("name", "required_tasks", "attach_router", "init_state")
"""What an endpoint plugin's object must have."""


@runtime_checkable
class EndpointPlugin(Protocol):
    """What an entry point's factory returns.

    Attributes:
        name: as the entry point is called.
        required_tasks: served only for a model that has one of them; ``None``: always.
    """

    name: str
    required_tasks: tuple[str, ...] | None

    def attach_router(self, app: FastAPI) -> None:
        """Add routes to the application, before there is an engine."""

    async def init_state(
        self, engine_client: PromptClient | None, state: State, args: Namespace
    ) -> None:
        """Take the engine, once it is ready and before anything is served; routes find ``state``
        as ``request.app.state``."""


class EndpointEntry:
    """The plugin of one entry point: its factory is called when the server builds its routes."""

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self._name = name
        self._factory = factory

    @hookimpl
    def endpoint(self) -> Endpoint:
        # A name of its own: an entry point may be called as a built-in endpoint, and must not
        # take that one's place.
        return Endpoint(f"vllm:{self._name}", lambda: AttachedEndpoint(self._name, self._factory()))


def load(entry: EntryPoint) -> EndpointEntry:
    """Import what an entry point of the group names.

    Raises:
        ModuleNotFoundError: FastAPI is not installed, with what to do.
        TypeError: it cannot be called.
        whatever the import raises.
    """
    need_fastapi(f"endpoint plugins of the group {GROUP} add")
    factory = entry.load()
    if not callable(factory):
        raise TypeError(
            f"{entry.value} is a {type(factory).__name__}; expected a class or a function without "
            "arguments that returns the endpoint plugin"
        )
    return EndpointEntry(entry.name, factory)


def need_fastapi(who: str) -> None:
    """
    Raises:
        ModuleNotFoundError: FastAPI is not installed, with what to do.
    """
    if importlib.util.find_spec("fastapi") is None:
        raise ModuleNotFoundError(
            f"{who} routes to a FastAPI application, and FastAPI is not installed: pip install "
            "hookserve[vllm-compat]",
            name="fastapi",
        )


class FastAPIEndpoint:
    """What the server builds of code that adds its routes to a FastAPI application.

    Raises:
        ImportError: FastAPI cannot be imported.
    """

    required_tasks: Sequence[str] | None = None

    def __init__(self) -> None:
        from . import fastapi_app

        self._fastapi_app = fastapi_app

    def make_application(self, routes: Sequence[BaseRoute]) -> Starlette:
        """The FastAPI application to which this code, and others like it, add their routes."""
        return self._fastapi_app.make_application(routes)

    def parts_of(self, route: BaseRoute) -> Sequence[BaseRoute]:
        """The plain routes that one of the application's stands for."""
        return self._fastapi_app.parts_of(route)

    def lifespan(self) -> AbstractAsyncContextManager[Any]:
        """The startup and shutdown handlers, and lifespans of routers, that were added."""
        return self._lifespan.entered()

    def _hold_lifespan(self, app: Starlette) -> HeldLifespan:
        self._lifespan = self._fastapi_app.HeldLifespan(app)
        return self._lifespan


class AttachedEndpoint(FastAPIEndpoint):
    """One endpoint plugin's object, as the server asks it.

    Args:
        name: of the entry point.
        plugin: what its factory returned.

    Raises:
        TypeError: the object lacks a member.
        ImportError: FastAPI cannot be imported.
    """

    def __init__(self, name: str, plugin: Any) -> None:
        super().__init__()
        missing = [member for member in MEMBERS if not hasattr(plugin, member)]
        if missing:
            raise TypeError(
                f"its {type(plugin).__name__} has no {' and no '.join(missing)}; an endpoint "
                f"plugin has {', '.join(MEMBERS)}"
            )
        if plugin.name != name:
            logger.warning(
                "the endpoint plugin of entry point %s calls itself %r; it goes by the entry "
                "point's name",
                name,
                plugin.name,
            )
        self.required_tasks = plugin.required_tasks
        self._plugin = plugin

    def attach(self, app: Starlette, facts: ServerFacts | None) -> None:
        """Have the plugin add its routes, and keep its startup and shutdown handlers apart, as
        in ``init_state``."""
        del facts  # it is told in init_state
        with self._hold_lifespan(app).held():
            self._plugin.attach_router(app)

    async def init_state(
        self, engine_client: PromptClient, state: State, settings: ServerSettings
    ) -> None:
        """Give the plugin the settings under vLLM's names, which ``state.args`` has too."""
        from .endpoint_arguments import arguments_of

        state.args = arguments_of(settings, engine_client.engine_config)
        with self._lifespan.held():
            answer = self._plugin.init_state(engine_client, state, state.args)
            if not inspect.isawaitable(answer):
                raise TypeError(f"it returned {type(answer).__name__}, expected an `async def`")
            await answer
