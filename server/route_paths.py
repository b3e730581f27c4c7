"""Which routes are the same one, and which keeps another from being reached, by path and method.

Paths as Starlette's routing writes them. Whose a route is, and what follows from that, is
``EndpointSet``'s to say.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

WEBSOCKET, ANY = "WebSocket", "any method"
"""What stands for the method of a route without one; the second is a mount's."""

_HTTP_METHODS = ("DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT")
_PARAMETER = re.compile(r"{\w*(:\w+)?}")
_SLASHES = re.compile(r"/+")


class RouteKey(NamedTuple):
    """What a route answers: two routes with one key cannot both be reached.

    ``path`` is as the author spelled it, but without the names of its parameters, which only the
    route itself sees: ``/of/{}``, ``/{:path}``.
    """

    path: str
    method: str

    @property
    def folded(self) -> RouteKey:
        """With single slashes between the parts, and none at the end."""
        return self._replace(path=_SLASHES.sub("/", self.path).rstrip("/") or "/")

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def keys_of(route: BaseRoute) -> list[RouteKey]:
    """What a route answers, one for each method; nothing for a kind of route that is not known."""
    if isinstance(route, WebSocketRoute):
        methods = [WEBSOCKET]
    elif isinstance(route, Mount):
        methods = [ANY]
    elif isinstance(route, Route):
        methods = _methods(route)
    else:
        return []
    path = _PARAMETER.sub(lambda found: f"{{{found[1] or ''}}}", route.path)
    return [RouteKey(path, method) for method in methods]


def hides(route: BaseRoute, key: RouteKey) -> bool:
    """Whether a route that comes first answers whatever one with this key would have answered."""
    if isinstance(route, Mount):
        is_asked = True
    elif isinstance(route, Route):
        is_asked = key.method in _methods(route)
    else:
        is_asked = isinstance(route, WebSocketRoute) and key.method == WEBSOCKET
    return is_asked and bool(route.path_regex.match(key.path))  # type: ignore[attr-defined]


def _methods(route: Route) -> list[str]:
    """Without HEAD, which comes with GET. A class has a function for each of its methods."""
    if route.methods is None:
        return [name for name in _HTTP_METHODS if hasattr(route.endpoint, name.lower())]
    return sorted(route.methods - {"HEAD"})
