"""How reasoning is parted from content while the text grows: one class for each way in which a
parser says where it ends. The contract is that of ``call_streams``.
"""

from __future__ import annotations

from collections.abc import Sequence

from .call_streams import CallStream
from .held_end import num_held
from .reasoning_parser import MarkedReasoningParser, ReasoningParser
from .tool_calls import DeltaMessage, ParserRequest


def open_reasoning(
    parser: ReasoningParser, request: ParserRequest, *, is_whole: bool = False
) -> CallStream:
    """The parser's own streaming method where it has one, else one that follows from its whole
    form.

    Args:
        is_whole: as ``open_calls`` has it.
    """
    own = type(parser).extract_reasoning_streaming
    if own is not ReasoningParser.extract_reasoning_streaming:
        return WholeReasoning(parser, request) if is_whole else OwnReasoning(parser)
    return generic_reasoning(parser, request)


def generic_reasoning(parser: ReasoningParser, request: ParserRequest) -> CallStream:
    if (
        isinstance(parser, MarkedReasoningParser)
        and type(parser).extract_reasoning is MarkedReasoningParser.extract_reasoning
    ):
        return MarkedReasoning(parser)
    return WholeReasoning(parser, request)


class MarkedReasoning:
    """Of a ``MarkedReasoningParser``. What may still become a marker is kept."""

    def __init__(self, parser: MarkedReasoningParser) -> None:
        self._start = parser.reasoning_start_str
        self._end = parser.reasoning_end_str
        self._held = ""
        self._is_first = True
        self._is_reasoning = parser.is_thinking()

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        if not self._is_reasoning:
            return DeltaMessage(text)
        self._held += text
        if self._is_first:
            begin = self._held.lstrip()
            if self._start.startswith(begin) and begin != self._start:
                return DeltaMessage()
            self._is_first = False
            self._held = begin[len(self._start) :] if begin.startswith(self._start) else self._held
        reasoning, marker, content = self._held.partition(self._end)
        if marker:
            self._held, self._is_reasoning = "", False
            return DeltaMessage(content or None, reasoning or None)
        num_kept = num_held(self._held, (self._end,))
        certain = len(self._held) - num_kept
        shown, self._held = self._held[:certain], self._held[certain:]
        return DeltaMessage(reasoning=shown)

    def end(self) -> DeltaMessage:
        rest, self._held = self._held, ""
        return DeltaMessage(reasoning=rest)


class WholeReasoning:
    """Of a parser that knows whole texts alone. What it says of a text that grows may change until
    the end marker is there; from then on what it says is given out as it grows."""

    def __init__(self, parser: ReasoningParser, request: ParserRequest) -> None:
        self._parser = parser
        self._request = request
        self._text = ""
        self._reasoning = ""
        self._content = ""
        """What was given out."""

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        self._text += text
        marker = self._parser.reasoning_end_str
        if not marker or marker not in self._text:
            return DeltaMessage()
        return self._take(self._text)

    def end(self) -> DeltaMessage:
        return self._take(self._text)

    def _take(self, text: str) -> DeltaMessage:
        found = self._parser.extract_reasoning(text, self._request)
        reasoning, content = found[0] or "", found[1] or ""
        if not reasoning.startswith(self._reasoning) or not content.startswith(self._content):
            return DeltaMessage()
        message = DeltaMessage(content[len(self._content) :], reasoning[len(self._reasoning) :])
        self._reasoning, self._content = reasoning, content
        return message


class OwnReasoning:
    """Of a parser with a streaming method of its own."""

    def __init__(self, parser: ReasoningParser) -> None:
        self._parser = parser
        self._text = ""
        self._token_ids: list[int] = []

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        if not text and not token_ids:
            return DeltaMessage()
        text_before, ids_before = self._text, self._token_ids
        self._text, self._token_ids = text_before + text, [*ids_before, *token_ids]
        found = self._parser.extract_reasoning_streaming(
            text_before, self._text, text, ids_before, self._token_ids, list(token_ids)
        )
        return DeltaMessage() if found is None else found

    def end(self) -> DeltaMessage:
        return DeltaMessage()
