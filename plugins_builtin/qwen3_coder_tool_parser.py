"""Built-in tool parser ``qwen3_coder``: calls as tags, ``<tool_call><function=NAME><parameter=KEY>
value </parameter></function></tool_call>``.

The format of the chat template of Qwen3-Coder
(https://huggingface.co/Qwen/Qwen3-Coder-480B-A35B-Instruct, ``chat_template.jinja``). Values are
plain text; what they are is said by the declared schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hookserve.engine.text.tool_calls import FunctionCall, ParserRequest
from hookserve.engine.text.tool_parser import MarkedToolParser, Reading

from .call_text import NoCallError, past_marker, skip_blank

START, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER = "<parameter="
_NAME = re.compile(r"[^<>\s]{1,256}>")
_NAME_BEGINNING = re.compile(r"[^<>\s]{0,256}")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
"""A value may have its own end tag in it, but not one before a tag that can follow."""
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


class _NotYet(Exception):
    """The text ends before it is known what it is."""


class Qwen3CoderToolParser(MarkedToolParser):
    """Tags of calls may be left out around a function."""

    start_markers = (START, FUNCTION)
    closers = ">"

    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        marker = START if text.startswith(START, start) else FUNCTION
        at = start
        if marker == START:
            at = skip_blank(text, start + len(START))
        try:
            name, at = _tag(text, at, FUNCTION)
            values: dict[str, Any] = {}
            properties = request.parameters_of(name).get("properties")
            known = properties if isinstance(properties, dict) else {}
            while True:
                at = skip_blank(text, at)
                if text.startswith(FUNCTION_END, at):
                    at += len(FUNCTION_END)
                    break
                if FUNCTION_END.startswith(text[at:]):
                    raise _NotYet
                key, at = _tag(text, at, PARAMETER)
                end = _VALUE_END.search(text, at)
                if end is None:
                    raise _NotYet
                begin = at + 1 if text.startswith("\n", at) and at < end.start() else at
                values[key] = _value(text[begin : end.start()], known.get(key))
                at = end.end()
        except _NotYet:
            return None
        except NoCallError:
            return Reading(start + len(marker))
        behind = past_marker(text, at, END, is_whole)
        if behind is None:
            return None
        arguments = json.dumps(values, ensure_ascii=False)
        return Reading(behind, (FunctionCall(name, arguments),))


def _tag(text: str, at: int, opening: str) -> tuple[str, int]:
    """The name in a tag ``<opening=NAME>``, and the index behind it.

    Raises:
        _NotYet, NoCallError
    """
    if not text.startswith(opening, at):
        raise _NotYet if opening.startswith(text[at:]) else NoCallError
    begin = at + len(opening)
    name = _NAME.match(text, begin)
    if name is None:
        raise _NotYet if _NAME_BEGINNING.fullmatch(text, begin) else NoCallError
    return name[0][:-1], name.end()


def _value(text: str, schema: Any) -> Any:
    """The value that a parameter's text is by its schema; the text itself where it fits none of
    the schema's types."""
    types = _types_of(schema)
    if not types:
        return text
    word = text.strip()
    try:
        value = _WORDS[word.lower()] if word.lower() in _WORDS else json.loads(word)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # half a character is none
    except (ValueError, RecursionError):
        return text
    for kind in types:
        is_bool_for_number = isinstance(value, bool) and kind != "boolean"
        if isinstance(value, _TYPES.get(kind, ())) and not is_bool_for_number:
            return value
    return text


def _types_of(schema: Any) -> list[str]:
    """The types of a schema, also of its alternatives, but for ``string``."""
    if not isinstance(schema, dict):
        return []
    given = schema.get("type")
    types = given if isinstance(given, list) else [given]
    for key in ("anyOf", "oneOf"):
        alternatives = schema.get(key)
        for each in alternatives if isinstance(alternatives, list) else ():
            types = [*types, *_types_of(each)]
    return [kind for kind in types if isinstance(kind, str) and kind != "string"]
