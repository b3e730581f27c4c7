"""What the hooks around one HTTP request are given and answer with: who asks, what is asked for,
what may be refused, and what goes back.

Plain data, so that a plugin needs no HTTP library. Declarations and the other contracts are
``types``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

Scope = Literal["inference", "admin"]
SCOPES: tuple[Scope, ...] = ("inference", "admin")


class RequestHead(msgspec.Struct, frozen=True):
    """An HTTP request before its body is read: what ``authenticate`` is given.

    Args:
        method: in upper case.
        path: decoded, without the query.
        query: as it came, without the question mark.
        headers: by lower-case name; what came more than once is joined by ``", "``.
        client: the peer's address, or ``None`` on a Unix socket.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    client: str | None


class Principal(msgspec.Struct, frozen=True):
    """Who sends a request: what ``authenticate`` answers with.

    Args:
        name: stands in records and logs, so not a secret.
        scopes: what it may use: ``"inference"`` (the routes that compute), ``"admin"`` (the routes
            that show and change the server).
        attributes: the authenticating plugin's own facts, for other hooks.
    """

    name: str
    scopes: frozenset[Scope] = frozenset({"inference"})
    attributes: Mapping[str, Any] = {}


class Authenticator(Protocol):
    """Says who sends a request: what ``--authenticator`` names.

    Built once as ``cls(config)``, within the time of a start-up hook, with its plugin's own section
    of ``--plugin-config`` as hooks find it in ``ctx.config``; a class that is named by its path
    belongs to no plugin, and is given what ``--additional-config`` holds.
    """

    def __init__(self, config: Any) -> None: ...

    async def authenticate(self, head: RequestHead) -> Principal | None:
        """Asked about each request without a key of the server's own. ``None``: not known here.
        What it raises, or does not say in the time of a front hook, denies the request."""


class ApiRequest(msgspec.Struct, frozen=True):
    """A decoded request for text. A changed one is made with ``msgspec.structs.replace``.

    Args:
        request_id: as in the reply's ``X-Request-Id``. A client may choose it: two requests may
            have one.
        route: the path of the route, such as ``"/v1/chat/completions"``.
        model: the name under which the reply is given.
        body: the request's JSON as plain data. A changed body is checked again.
        headers: as in ``RequestHead``, without ``authorization``.
    """

    request_id: str
    route: str
    model: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = {}


class Refusal(msgspec.Struct, frozen=True):
    """A request is not served: the answer of ``before_request`` and ``admit``.

    Args:
        message: for the client.
        status: HTTP status, 400 to 599; 429 and 503 for ``admit``.
        code: the error's ``code`` in the reply.
        retry_after_s: seconds, for the header ``Retry-After``.
    """

    message: str
    status: int = 429
    code: str = "refused"
    retry_after_s: float | None = None


class EngineLoad(msgspec.Struct, frozen=True):
    """How busy the engine is, by its last report and what was submitted since.

    Args:
        num_running: sequences that the last step was for.
        num_waiting: sequences that wait for their turn, those submitted since then too.
        num_unfinished: both.
        kv_cache_usage: 0 to 1.
    """

    num_running: int
    num_waiting: int
    num_unfinished: int
    kv_cache_usage: float


class ResponseDelta(msgspec.Struct, frozen=True):
    """A piece of one choice's text on its way to the client.

    Args:
        index: of the choice.
        text: may be empty at the end; what a hook returns in its place goes on.
        finish_reason: ``None`` until the choice ends.
    """

    index: int
    text: str
    finish_reason: str | None = None
