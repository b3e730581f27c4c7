"""Built-in tool parser ``hermes``: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.

The format of NousResearch's Hermes 2 Pro and later models
(https://github.com/NousResearch/Hermes-Function-Calling, "Prompt Format for Function Calling"), and
of Qwen 2.5 and Qwen 3 (https://qwen.readthedocs.io/en/latest/framework/function_call.html).
"""

from __future__ import annotations

from hookserve.engine.text.tool_calls import ParserRequest
from hookserve.engine.text.tool_parser import MarkedToolParser, Reading

from .call_text import NoCallError, end_of, past_marker, read_call, skip_blank

START = "<tool_call>"
END = "</tool_call>"


class HermesToolParser(MarkedToolParser):
    """An end marker that is left out is no fault: a call ends with its object."""

    start_markers = (START,)
    closers = "}>"

    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        at = skip_blank(text, start + len(START))
        if at == len(text):
            return None
        no_call = Reading(start + len(START))
        if text[at] != "{":
            return no_call
        try:
            end = end_of(text, at)
            if end is None:
                return None
            call = read_call(text[at:end])
        except NoCallError:
            return no_call
        behind = past_marker(text, end, END, is_whole)
        return None if behind is None else Reading(behind, (call,))
