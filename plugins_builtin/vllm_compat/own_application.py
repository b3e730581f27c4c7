"""The two phases of endpoint plugins for an application that a program or a test made itself.

The server attaches them in its own way (``endpoints``).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .group_objects import make_endpoints

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.datastructures import State


def attach_endpoint_plugins(app: FastAPI, supported_tasks: Iterable[str] | None = None) -> None:
    """Have each chosen plugin add its routes; they come before those that were there, so that the
    same path and method replaces. The plugins are kept in ``app.state.endpoint_plugins``.

    Raises:
        hookserve.hookspecs.HostError: there is no plugin host in this process.
        whatever a plugin raises.
    """
    plugins = make_endpoints(supported_tasks)
    for plugin in plugins:
        before = list(app.router.routes)
        plugin.attach_router(app)
        known = set(map(id, before))
        added = [route for route in app.router.routes if id(route) not in known]
        app.router.routes = [*added, *before]
    app.openapi_schema = None  # one that was asked for before lacks them
    app.state.endpoint_plugins = plugins


async def init_endpoint_plugins_state(engine_client: Any, state: State, args: Namespace) -> None:
    """Give each plugin that was attached the engine (``None``: there is none), one by one."""
    for plugin in getattr(state, "endpoint_plugins", ()):
        await plugin.init_state(engine_client, state, args)
