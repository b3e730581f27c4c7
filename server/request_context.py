"""Where one request's id, head and sender live while it is served: in the ASGI scope's ``state``.

``RequestGuard`` begins it, ``Authentication`` says who sends the request; routes and hooks read it
here. Plugins' routes find the same under ``request.state.request_id`` and ``.principal``.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from starlette.types import Scope

from hookserve.hookspecs import request_types
from hookserve.hookspecs.request_types import Principal, RequestHead


def begin(scope: Scope, request_id: str) -> None:
    """Note the id of a request of which nobody knows yet who sends it."""
    state = _state(scope)
    state["request_id"] = request_id
    state["root_path"] = scope.get("root_path", "")
    state["principal"] = None


def rename(scope: Scope, request_id: str) -> None:
    """Give the request the id that its client named in the body."""
    _state(scope)["request_id"] = request_id


def set_sender(scope: Scope, principal: Principal | None, grants: Set[request_types.Scope]) -> None:
    """Note who sends the request and which scopes that gives it. Without this word it has none."""
    state = _state(scope)
    state["principal"] = principal
    state["grants"] = frozenset(grants)


def principal_of(scope: Scope) -> Principal | None:
    """Who sends the request; ``None`` where every route is open."""
    principal = _state(scope).get("principal")
    assert principal is None or isinstance(principal, Principal)
    return principal


def grants_of(scope: Scope) -> frozenset[request_types.Scope]:
    """The scopes of the request; all of them where every route is open."""
    grants: frozenset[request_types.Scope] = _state(scope).get("grants", frozenset())
    return grants


def request_id_of(scope: Scope) -> str:
    """As in the reply's ``X-Request-Id``; empty for what is no HTTP request."""
    return str(_state(scope).get("request_id", ""))


def head_of(scope: Scope) -> RequestHead:
    """The request's head as hooks are given it; made at the first use."""
    state = _state(scope)
    head = state.get("head")
    if head is None:
        head = state["head"] = _make_head(scope)
    assert isinstance(head, RequestHead)
    return head


def route_path(scope: Scope) -> str:
    """The path as routes are compared with it: decoded, without the application's root path."""
    path: str = scope["path"]
    # A route that mounts an application has moved the scope's own.
    root = str(_state(scope).get("root_path", scope.get("root_path", "")))
    return path[len(root) :] if path == root or path.startswith(root + "/") else path


def _make_head(scope: Scope) -> RequestHead:
    client = scope.get("client")
    return RequestHead(
        method=scope.get("method", "GET"),  # a WebSocket begins as one
        path=route_path(scope),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=_join(scope["headers"]),
        client=client[0] if client else None,
    )


def _join(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in fields:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _state(scope: Scope) -> dict[str, Any]:
    state: dict[str, Any] = scope.setdefault("state", {})
    return state
