"""Built-in tool parser ``llama3_json``: the whole text is ``{"name": …, "parameters": {…}}``, or
several of them with semicolons between.

The format of Llama 3.1 and 3.2 for custom tools
(https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/, "JSON based tool calling"),
with ``<|python_tag|>`` before it where the template says that tools may be used with an
environment.
"""

from __future__ import annotations

from hookserve.engine.text.tool_calls import FunctionCall, ParserRequest
from hookserve.engine.text.tool_parser import MarkedToolParser, Reading

from .call_text import NoCallError, end_of, read_call, skip_blank

TAG = "<|python_tag|>"


class Llama3JsonToolParser(MarkedToolParser):
    """JSON that names none of the declared functions is an answer, and content."""

    start_markers = (TAG,)
    first_markers = ("{", TAG)

    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        at = start + len(TAG) if text.startswith(TAG, start) else start
        no_call = Reading(max(at, start + 1))
        declared = {tool.function.name for tool in request.tools}
        calls: list[FunctionCall] = []
        end = at
        while True:
            at = skip_blank(text, at)
            if at == len(text):
                end = at
                break
            try:
                if text[at] != "{":
                    raise NoCallError
                behind = end_of(text, at)
                if behind is None:
                    break
                call = read_call(text[at:behind], needs_arguments=True)
                if declared and call.name not in declared:
                    raise NoCallError
            except NoCallError:
                return Reading(end, calls) if calls else no_call
            calls.append(call)
            end = behind
            at = skip_blank(text, end)
            if at == len(text):
                break
            if text[at] != ";":
                return Reading(end, calls)
            at += 1
        return Reading(end, calls) if is_whole and calls else None
