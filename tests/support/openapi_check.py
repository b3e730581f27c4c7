"""Real replies and events against what ``/openapi.json`` says of them."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from reply_fold import events_of


def check_reply(document: Any, path: str, status: int, value: Any) -> None:
    """The JSON of a whole reply, or of a failure."""
    _check(document, _content(document, path, status)["application/json"]["schema"], value)


def check_events(document: Any, path: str, text: str) -> int:
    """Each event of a whole stream; returns how many there are."""
    events = events_of(text)
    schema = _content(document, path, 200)["text/event-stream"]["x-hookserve-event"]
    for event in events:
        _check(document, schema, event)
    return len(events)


def _content(document: Any, path: str, status: int) -> Any:
    path = "/v1/models/{model}" if path.startswith("/v1/models/") else path
    (operation,) = document["paths"][path].values()
    reply = operation["responses"][str(status)]
    if "$ref" in reply:
        reply = document["components"]["responses"][reply["$ref"].rpartition("/")[2]]
    return reply["content"]


def _check(document: Any, schema: Any, value: Any) -> None:
    whole = {**schema, "components": document["components"]}
    problems = [error.message for error in Draft202012Validator(whole).iter_errors(value)]
    assert not problems, (problems, value)
