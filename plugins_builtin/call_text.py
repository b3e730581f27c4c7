"""What several built-in parsers of tool calls read alike: a call as a JSON object, and an end
marker that may be cut or left out."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hookserve.engine.text.json_end import json_end
from hookserve.engine.text.tool_calls import FunctionCall


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_CALL = msgspec.json.Decoder(_Call)
_CALLS = msgspec.json.Decoder(list[_Call])
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class NoCallError(ValueError):
    """A text is no call."""


def skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def end_of(text: str, start: int) -> int | None:
    """Behind the JSON that begins there; ``None``: it goes on.

    Raises:
        NoCallError: it cannot become JSON.
    """
    try:
        return json_end(text, start)
    except ValueError as error:
        raise NoCallError from error


def past_marker(text: str, at: int, marker: str, is_whole: bool) -> int | None:
    """Behind an end marker, if it is there, with the blanks before it; ``at`` if another text is;
    ``None``: it may still come. One that was cut at the end of the text is one."""
    begin = skip_blank(text, at)
    if text.startswith(marker, begin):
        return begin + len(marker)
    if not marker.startswith(text[begin:]):
        return at
    return len(text) if is_whole else None


def read_call(text: str, *, needs_arguments: bool = False) -> FunctionCall:
    """A call from ``{"name": …, "arguments": {…}}``, or with ``parameters``; the arguments stay as
    the model wrote them, but for line breaks in strings, which JSON has not.

    Args:
        needs_arguments: an object without arguments is no call.

    Raises:
        NoCallError: it is none.
    """
    try:
        call = _CALL.decode(_as_json(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoCallError from error
    return _function_call(call, needs_arguments)


def read_calls(text: str) -> list[FunctionCall]:
    """The same from a list of such objects, with one at least."""
    try:
        calls = _CALLS.decode(_as_json(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoCallError from error
    if not calls:
        raise NoCallError
    return [_function_call(call, False) for call in calls]


def read_arguments(text: str) -> str:
    """The text of an object, as it stands.

    Raises:
        NoCallError: it is none.
    """
    try:
        text = _as_json(text)
        _OBJECT.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoCallError from error
    return text


def _function_call(call: _Call, needs_arguments: bool) -> FunctionCall:
    text = (bytes(call.arguments) or bytes(call.parameters)).decode()
    if not call.name or (needs_arguments and not text):
        raise NoCallError
    text = text or "{}"
    if text.startswith('"'):  # the object's text in a string, as on the wire
        text = msgspec.json.decode(text, type=str)
    return FunctionCall(call.name, read_arguments(text))


def _as_json(text: str) -> str:
    """The text, written anew where it is JSON but for control characters in its strings.

    Raises:
        msgspec.DecodeError, RecursionError: it is not.
    """
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        json.loads(text)
    except (ValueError, msgspec.DecodeError):
        try:
            value = json.loads(text, strict=False)
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()  # half a character is none
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from error
    return text
