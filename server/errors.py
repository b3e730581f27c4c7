"""``ApiError`` and the one JSON envelope in which every failure of an HTTP request is told.

What a failure means is decided where it is found; this file only knows how it is written. No
traceback, file path or long value of the client's ever enters a message.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hookserve.engine.errors import (
    MAX_VALUE_LEN,
    EngineDeadError,
    NotServedError,
    QueueFullError,
    RequestError,
)
from hookserve.engine.errors import cut as cut
from hookserve.hookspecs import PluginError, Refusal

_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
}


class ApiError(Exception):
    """A failure with its HTTP status and the four fields of the envelope.

    ``error_type`` follows from the status unless given; ``code`` is a word that a program may
    test, or ``None``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        error_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        other = "server_error" if status >= 500 else "invalid_request_error"
        self.error_type = error_type or _TYPE_OF_STATUS.get(status, other)
        self.headers = dict(headers or {})

    def envelope(self) -> bytes:
        """The JSON body ``{"error": {message, type, param, code}}``."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.error_type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> Response:
        return Response(
            self.envelope(), self.status, headers=self.headers, media_type="application/json"
        )


class ReplyCutShort(Exception):
    """Raised after the log has the cause, for the HTTP server to drop the connection: a reply had
    begun that cannot be completed."""


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client's fault, at the field ``param``."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str, code: str, retry_after_s: int = 1) -> ApiError:
    """503: not now; the client may come back after ``retry_after_s`` seconds."""
    return ApiError(503, message, code=code, headers={"retry-after": str(retry_after_s)})


def engine_failure(error: EngineDeadError | RequestError) -> ApiError:
    """What the engine's side raised for a request: 503 where it is gone or has too much to do, 501
    where it cannot do such a thing, 400 where the request is at fault."""
    if isinstance(error, EngineDeadError):
        return ApiError(503, cut(str(error)), code="engine_dead")
    if isinstance(error, QueueFullError):
        return unavailable(error.message, error.code or "queue_full")
    if isinstance(error, NotServedError):
        return ApiError(501, cut(error.message), param=error.param, code=error.code)
    return bad_request(cut(error.message), error.param, error.code or "invalid_value")


def plugin_failure(error: PluginError, hook: str) -> ApiError:
    """500: a plugin failed in a hook. The log has what it raised, the client the kind alone."""
    kind = type(error.__cause__ or error).__name__
    return ApiError(
        500, f"the plugin {error.identity} failed in {hook} with {kind}", code="plugin_error"
    )


def refused(refusal: Refusal) -> ApiError:
    """What a plugin answers in the server's place."""
    wait_s = refusal.retry_after_s
    headers = {} if wait_s is None else {"retry-after": str(math.ceil(wait_s))}
    return ApiError(refusal.status, refusal.message, code=refusal.code, headers=headers)


def internal_error(request_id: str) -> ApiError:
    """500 for an exception that nobody expected; the log has it under the same id."""
    return ApiError(
        500, f"internal error; the server's log has it under request id {request_id}", code=None
    )


def nearest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the closest known word, or nothing."""
    matches = difflib.get_close_matches(word[:MAX_VALUE_LEN], list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


async def on_api_error(request: Request, error: Exception) -> Response:
    """Exception handler for ``ApiError``."""
    del request
    assert isinstance(error, ApiError)
    return error.response()


async def on_engine_failure(request: Request, error: Exception) -> Response:
    """Exception handler for what the engine's side raises."""
    del request
    assert isinstance(error, EngineDeadError | RequestError)
    return engine_failure(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for Starlette's own 404 and 405, and for plugins' ``HTTPException``."""
    assert isinstance(error, HTTPException)
    method = request.scope.get("method", "GET")  # a WebSocket begins as one
    return http_failure(method, request.url.path, error).response()


def http_failure(method: str, path: str, error: HTTPException) -> ApiError:
    """What an ``HTTPException`` means, in the envelope."""
    path = cut(path)
    if error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        message, code = f"no route {method} {path}", "unknown_route"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
        message = f"{path} does not accept {method}" + (f"; use {allowed}" if allowed else "")
        code = "method_not_allowed"
    else:
        message, code = cut(error.detail), ""
    return ApiError(error.status_code, message, code=code or None, headers=error.headers)
