"""Built-in tool parser ``pythonic``: the whole text is a Python list of calls,
``[get_weather(city="Paris"), get_time()]``.

The format of Llama 3.2's small models
(https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_2/, "Zero-shot function calling"),
of ToolACE models, and of Llama 4 with ``<|python_start|>`` and ``<|python_end|>`` around it. It is
read, never run.
"""

from __future__ import annotations

import ast
import json
import re
import threading
import warnings
from typing import Any

from hookserve.engine.text.tool_calls import FunctionCall, ParserRequest
from hookserve.engine.text.tool_parser import MarkedToolParser, Reading

from .call_text import NoCallError, past_marker, skip_blank

TAG, END_TAG = "<|python_start|>", "<|python_end|>"
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_INTERESTING = re.compile(r"[\"'()\[\]{}]")
_WORDS = {"true": True, "false": False, "null": None}
_quiet = threading.Lock()
"""Of the interpreter's one list of warnings: who leaves last would put back what another made of
it. Long texts are read in threads."""


class PythonicToolParser(MarkedToolParser):
    """A list in which anything is no call with keyword arguments, or that calls none of the
    declared functions, is an answer, and content."""

    start_markers = (TAG,)
    first_markers = ("[", TAG)
    closers = "])>"

    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        has_tag = text.startswith(TAG, start)
        no_call = Reading(start + (len(TAG) if has_tag else 1))
        at = skip_blank(text, start + len(TAG)) if has_tag else start
        if at == len(text):
            return None
        declared = {tool.function.name for tool in request.tools}
        try:
            end = _list_end(text, at)
            if end is None:
                return None
            calls = _read_list(text[at:end])
        except NoCallError:
            return no_call
        if declared and not declared >= {call.name for call in calls}:
            return no_call
        if not has_tag:
            return Reading(end, calls)
        behind = past_marker(text, end, END_TAG, is_whole)
        return None if behind is None else Reading(behind, calls)


def _list_end(text: str, start: int) -> int | None:
    """Behind the list that begins there; ``None``: it goes on.

    Raises:
        NoCallError: there is none.
    """
    if text[start] != "[":
        raise NoCallError
    open_brackets: list[str] = []
    at = start
    while True:
        found = _INTERESTING.search(text, at)
        if found is None:
            return None
        char, at = found[0], found.end()
        if char in _CLOSES:
            open_brackets.append(_CLOSES[char])
        elif char in "\"'":
            end = _string_end(text, found.start())
            if end is None:
                return None
            at = end
        elif char != open_brackets.pop():
            raise NoCallError
        elif not open_brackets:
            return at


def _string_end(text: str, start: int) -> int | None:
    quote = text[start] * (3 if text.startswith(text[start] * 3, start) else 1)
    if text.startswith(text[start] * 2, start) and len(quote) == 1:
        # Two of them are an empty string, unless a third one comes.
        return start + 2 if len(text) > start + 2 else None
    at = start + len(quote)
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text.startswith(quote, at):
            return at + len(quote)
        else:
            at += 1
    return None


def _read_list(source: str) -> list[FunctionCall]:
    """
    Raises:
        NoCallError: it is no list of calls.
    """
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about backslashes
            tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise NoCallError
        return [_read_call(each) for each in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NoCallError from error


def _read_call(node: ast.expr) -> FunctionCall:
    if not isinstance(node, ast.Call) or node.args:
        raise NoCallError
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NoCallError
        arguments[keyword.arg] = _literal(keyword.value)
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # half a character is none
    return FunctionCall(_dotted(node.func), text)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise NoCallError


def _literal(node: ast.expr) -> Any:
    """A value as JSON has it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {
            _key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)
        }
    raise NoCallError


def _key(node: ast.expr | None) -> str:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise NoCallError
    return node.value
