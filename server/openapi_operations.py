"""What the built-in routes take and give: the table behind ``/openapi.json``.

The types are those that the routes decode with, and those of ``wire_replies``; how a document is
made of them is ``openapi_document``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from . import wire_chat, wire_completions, wire_replies, wire_tokenize
from .wire_json import RequestDecoder

STATUSES: Mapping[int, str] = MappingProxyType(
    {
        400: "the request is wrong; `param` is the field at fault",
        401: "nobody is known by these credentials",
        403: "these credentials do not have the scope",
        404: "there is no such model",
        408: "the request did not arrive in time",
        413: "the body is too big",
        415: "the body is not JSON, or compressed",
        429: "a plugin refuses for now",
        431: "the headers are too big",
        500: "the fault is the server's or a plugin's",
        501: "the body comes in a transfer encoding that is not supported",
        503: "the server is loading, stopping or has too much to do, or its engine is gone",
    }
)
"""Of failures; all of them have the same body."""

_ALWAYS = (400, 401, 403, 408, 413, 431, 500, 501, 503)
_WITH_MODEL = (404,)
_WITH_JSON = (404, 415, 429)


@dataclass(frozen=True)
class Operation:
    """
    Args:
        reply: the type of a reply, or the media type of one that is no JSON.
        event: the type of one event, where the reply may be a stream.
        decoder: of the body; ``None``: there is none.
        required: fields that must be given, and are not ``null``.
        one_of: fields of which exactly one must be.
        failures: the statuses of failures.
    """

    summary: str
    tag: str
    reply: type[msgspec.Struct] | str
    event: type[msgspec.Struct] | None = None
    decoder: RequestDecoder | None = None
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    failures: tuple[int, ...] = _ALWAYS


def _reads(summary: str, tag: str, reply: Any, *failures: int) -> Operation:
    return Operation(summary, tag, reply, failures=tuple(sorted({*_ALWAYS, *failures})))


def _takes(
    summary: str, tag: str, decoder: RequestDecoder, reply: type[msgspec.Struct], **more: Any
) -> Operation:
    failures = tuple(sorted({*_ALWAYS, *_WITH_JSON}))
    return Operation(summary, tag, reply, decoder=decoder, failures=failures, **more)


OPERATIONS: Mapping[tuple[str, str], Operation] = MappingProxyType(
    {
        ("POST", "/v1/chat/completions"): _takes(
            "Answer the messages of a chat",
            "generate",
            wire_chat.DECODER,
            wire_replies.ChatCompletion,
            event=wire_replies.ChatEvent,
            required=("messages",),
        ),
        ("POST", "/v1/completions"): _takes(
            "Go on with a text",
            "generate",
            wire_completions.DECODER,
            wire_replies.Completion,
            event=wire_replies.CompletionEvent,
            required=("prompt",),
        ),
        ("GET", "/v1/models"): _reads("The models", "models", wire_replies.ModelList),
        ("GET", "/v1/models/{model}"): _reads(
            "One model", "models", wire_replies.ModelCard, *_WITH_MODEL
        ),
        ("POST", "/tokenize"): _takes(
            "The tokens of a prompt or of a chat",
            "tokens",
            wire_tokenize.TOKENIZE_DECODER,
            wire_replies.Tokens,
            one_of=("prompt", "messages"),
        ),
        ("POST", "/detokenize"): _takes(
            "The text of tokens",
            "tokens",
            wire_tokenize.DETOKENIZE_DECODER,
            wire_replies.Detokenized,
            required=("tokens",),
        ),
        ("GET", "/livez"): _reads("Whether the process runs", "operate", wire_replies.Status),
        ("GET", "/readyz"): _reads("Whether it can answer now", "operate", wire_replies.Status),
        ("GET", "/health"): _reads("As /readyz", "operate", wire_replies.Status),
        ("GET", "/version"): _reads("The server's version", "operate", wire_replies.Version),
        ("GET", "/metrics"): _reads("Metrics, as Prometheus reads them", "operate", "text/plain"),
        ("GET", "/v1/plugins"): _reads(
            "The plugins of every process", "operate", wire_replies.PluginProcesses
        ),
        ("GET", "/openapi.json"): _reads("This document", "operate", "application/json"),
        ("GET", "/docs"): _reads("This document as a page", "operate", "text/html"),
    }
)
"""By method and path. A test holds it against the routes."""
