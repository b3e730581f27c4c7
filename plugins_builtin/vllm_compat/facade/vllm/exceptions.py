"""The errors that a request can end with, and what each becomes over HTTP.

They are our own errors under these names, so that one that a processor, a parser or a route raises
is told to the client as such.
"""

from __future__ import annotations

from typing import Any

from hookserve.engine.errors import InvalidRequestError, QueueFullError
from hookserve.server.errors import ApiError

__all__ = [
    "GenerationError",
    "GracefulHTTPError",
    "MaxQueuedTokensError",
    "QueueOverflowError",
    "RetryableRequestError",
    "VLLMClientError",
    "VLLMError",
    "VLLMNotFoundError",
    "VLLMServerError",
    "VLLMUnprocessableEntityError",
    "VLLMValidationError",
]

__surface__ = {
    "GenerationError": "live: 500; the log has what happened, the client the request id",
    "GracefulHTTPError": "live: the base of those that the client may come back after",
    "MaxQueuedTokensError": "live: 503 with Retry-After",
    "ProfilerAlreadyActiveError": "refused: there is no profiler; run the process under one",
    "QueueOverflowError": "live: 503 with Retry-After",
    "RetryableRequestError": "live: 503 with Retry-After",
    "VLLMClientError": "live: 400 with its own sentence",
    "VLLMError": "live: the base of all",
    "VLLMNotFoundError": "live: 404 with its own sentence",
    "VLLMServerError": "live: 500; the log has what happened, the client the request id",
    "VLLMUnprocessableEntityError": "live: 422 with its own sentence",
    "VLLMValidationError": "live: 400 with its own sentence and the parameter",
}


class VLLMError(Exception):
    """The base of all."""


class VLLMClientError(VLLMError, InvalidRequestError):
    """The caller's fault."""


class VLLMValidationError(VLLMClientError):
    """A value that cannot be."""

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message, param=parameter)
        self.parameter = parameter
        self.value = value


class VLLMNotFoundError(ApiError, VLLMClientError):
    """Something that is not there."""

    def __init__(self, message: str) -> None:
        ApiError.__init__(self, 404, message)


class VLLMUnprocessableEntityError(ApiError, VLLMClientError):
    """Something that is understood and cannot be done."""

    def __init__(self, message: str) -> None:
        ApiError.__init__(self, 422, message)


class VLLMServerError(VLLMError):
    """The server's fault."""


class GenerationError(VLLMServerError):
    """A request that failed alone."""


class GracefulHTTPError(VLLMError, QueueFullError):
    """Not now."""


class QueueOverflowError(GracefulHTTPError):
    """Too many requests wait."""


class MaxQueuedTokensError(GracefulHTTPError):
    """Requests of too many tokens wait."""


class RetryableRequestError(GracefulHTTPError):
    """The same request may be taken later."""
