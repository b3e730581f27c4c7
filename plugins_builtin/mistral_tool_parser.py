"""Built-in tool parser ``mistral``: ``[TOOL_CALLS]`` and then a list of ``{"name": …, "arguments":
{…}}``, or for each call ``[TOOL_CALLS]name{…}``, also with ``[ARGS]`` before the object.

The formats of Mistral's tokenizers: the list of v3 and v7
(https://docs.mistral.ai/capabilities/function_calling), the other of v11 and v13
(https://github.com/mistralai/mistral-common, ``src/mistral_common/tokens/tokenizers/instruct.py``).
"""

from __future__ import annotations

import re
import secrets
import string

from hookserve.engine.text.tool_calls import FunctionCall, ParserRequest
from hookserve.engine.text.tool_parser import MarkedToolParser, Reading

from .call_text import NoCallError, end_of, read_arguments, read_calls, skip_blank

START = "[TOOL_CALLS]"
_HEAD = re.compile(r"(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_BEGINNING = re.compile(r"[\w.\-\[\]]{0,256}\s*")
_ID_CHARS = string.ascii_letters + string.digits
_ID_LEN = 9
"""Mistral's templates take ids of this form alone."""


class MistralToolParser(MarkedToolParser):
    start_markers = (START,)
    closers = "}]"

    def make_id(self) -> str:
        return "".join(secrets.choice(_ID_CHARS) for _ in range(_ID_LEN))

    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        no_call = Reading(start + len(START))
        at = skip_blank(text, start + len(START))
        if at == len(text):
            return None
        try:
            if text[at] == "[":
                end = end_of(text, at)
                return None if end is None else Reading(end, read_calls(text[at:end]))
            head = _HEAD.match(text, at)
            if head is None:
                return None if _BEGINNING.fullmatch(text, at) else no_call
            end = end_of(text, head.end())
            if end is None:
                return None
            call = FunctionCall(head["name"], read_arguments(text[head.end() : end]))
            return Reading(end, (call,))
        except NoCallError:
            return no_call
