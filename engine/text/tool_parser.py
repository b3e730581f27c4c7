"""``ToolParser``: finds the calls of tools in a model's text. The base of every parser, and
``MarkedToolParser``, of those whose calls begin with a marker.

Method names are the ecosystem's (vLLM's). A parser says what a whole text holds; how that is
streamed is ``call_streams``'. There is one instance for each choice of a request.
"""

from __future__ import annotations

import abc
import functools
import json
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from .tokenizer import Tokenizer
from .tool_calls import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ParserRequest,
    Tool,
    fold_calls,
    make_call_id,
)


class ToolParser(abc.ABC):
    """
    Attributes:
        start_markers: texts with which calls begin: what is before the first of them is content
            for sure, and is streamed. ``None``: unknown, so that a parser without a streaming
            method of its own gives its text at the end.
        supports_required_and_named: whether a request that must call is answered in the server's
            own form, JSON by the declared schemas. Else ``adjust_request`` has to constrain it to
            the parser's.
    """

    start_markers: ClassVar[tuple[str, ...] | None] = None
    supports_required_and_named: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Tool] | None = None) -> None:
        self.model_tokenizer = tokenizer
        self.tools = list(tools or ())
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        """For streaming methods of a parser's own: the calls so far, with ``arguments``."""
        self.current_tool_id = -1
        self.current_tool_name_sent = False
        self.streamed_args_for_tool: list[str] = []
        """For streaming methods of a parser's own: what was streamed of the arguments of each."""
        self._generic: Any = None

    @functools.cached_property
    def vocab(self) -> dict[str, int]:
        """Token to id."""
        return self.model_tokenizer.get_vocab()

    def adjust_request(self, request: ParserRequest) -> ParserRequest:
        """Called before the model gets the request. May set ``skip_special_tokens`` to false, where
        the markers are special tokens, and ``structured_outputs``."""
        return request

    def make_id(self) -> str:
        """The id of a call."""
        return make_call_id()

    @abc.abstractmethod
    def extract_tool_calls(
        self, model_output: str, request: ParserRequest
    ) -> ExtractedToolCallInformation:
        """What a whole text holds: calls, and content. Text that is no call is content."""

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ParserRequest,
    ) -> DeltaMessage | None:
        """What a step adds; ``None``: nothing. Where a class has this method itself it is called
        for each step. This one is for who steps through a text alone: it does not know which
        step is the last, and keeps what may still become a call."""
        from .call_streams import generic_calls

        if not previous_text:
            self._generic = generic_calls(self, request)
        return self._generic.push(delta_text, delta_token_ids) or None

    def get_remaining_unstreamed_args(self) -> str:
        """For streaming methods of a parser's own: what is still to come of the arguments of the
        last call when the text has ended."""
        last = len(self.prev_tool_call_arr) - 1
        if last < 0 or last >= len(self.streamed_args_for_tool):
            return ""
        arguments = self.prev_tool_call_arr[last].get("arguments", "")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        streamed = self.streamed_args_for_tool[last]
        return arguments[len(streamed) :] if arguments.startswith(streamed) else ""


class Reading(NamedTuple):
    """What is at a marker.

    Args:
        end: the index behind it.
        calls: none: ``text[start:end]`` is content, and what follows is looked at again.
    """

    end: int
    calls: Sequence[FunctionCall] = ()


class MarkedToolParser(ToolParser):
    """Calls begin with a marker, and where they end is known when their end is there. Both the
    whole form and the streamed one follow from ``read_calls``, which is a pure function, so that
    the result is the same however a text is cut.

    A call is given out when it is complete: what was given out cannot become content again.

    Attributes:
        start_markers: anywhere in the text.
        first_markers: as the first characters of the text that are not blank.
        closers: calls end with one of these characters.
    """

    start_markers: ClassVar[tuple[str, ...]] = ()
    first_markers: ClassVar[tuple[str, ...]] = ()
    closers: ClassVar[str] = "}"

    def adjust_request(self, request: ParserRequest) -> ParserRequest:
        """Markers that are special tokens must be seen."""
        if any(map(self.model_tokenizer.is_special, (*self.start_markers, *self.first_markers))):
            request.skip_special_tokens = False
        return request

    @abc.abstractmethod
    def read_calls(
        self, text: str, start: int, is_whole: bool, request: ParserRequest
    ) -> Reading | None:
        """What begins with the marker at ``text[start]``; ``None``: that is not known yet. It must
        not raise, whatever the text.

        Args:
            is_whole: nothing follows. ``None`` is then the same as: the marker is content.
        """

    def extract_tool_calls(
        self, model_output: str, request: ParserRequest
    ) -> ExtractedToolCallInformation:
        from .call_streams import MarkedCalls

        stream = MarkedCalls(self, request)
        message = stream.push(model_output, ())
        message.add(stream.end())
        calls = fold_calls(message.tool_calls)
        return ExtractedToolCallInformation(bool(calls), calls, message.content)
