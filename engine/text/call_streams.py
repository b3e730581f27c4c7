"""How the calls in one text are found while it grows: one class for each way in which a parser says
what it finds. Each is pushed the pieces of the text and then ended; together its answers are what
the parser says of the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .held_end import num_held
from .tool_calls import (
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ParserRequest,
)
from .tool_parser import MarkedToolParser, ToolParser

MAX_READ_ALWAYS = 512
"""Characters: what is kept for a call and is longer is not read at each step, but where it may have
ended, and when it has grown by a part, so that the cost is that of its length."""
GROWTH = 1.05
MAX_UNFINISHED = 64
"""Calls that are begun and not ended in one text; further markers are content."""


class CallStream(Protocol):
    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        """What is certain by now and was not before."""

    def end(self) -> DeltaMessage:
        """The rest."""


def open_calls(parser: ToolParser, request: ParserRequest, *, is_whole: bool = False) -> CallStream:
    """The parser's own streaming method where it has one, else one that follows from its whole
    form.

    Args:
        is_whole: the text comes in one piece, so that its whole form is all that is wanted.
    """
    own = type(parser).extract_tool_calls_streaming
    if own is not ToolParser.extract_tool_calls_streaming:
        return WholeCalls(parser, request) if is_whole else OwnCalls(parser, request)
    return generic_calls(parser, request)


def generic_calls(parser: ToolParser, request: ParserRequest) -> CallStream:
    if (
        isinstance(parser, MarkedToolParser)
        and type(parser).extract_tool_calls is MarkedToolParser.extract_tool_calls
    ):
        return MarkedCalls(parser, request)
    return WholeCalls(parser, request)


def first_marker(text: str, markers: Sequence[str], start: int = 0) -> int:
    """Where the first of the markers begins; -1: there is none."""
    found = [at for at in (text.find(marker, start) for marker in markers) if at >= 0]
    return min(found, default=-1)


class MarkedCalls:
    """Of a ``MarkedToolParser``. What follows a marker is kept until the parser knows what it is.

    Blank text between calls, before the first or behind the last of them is no content.
    """

    def __init__(self, parser: MarkedToolParser, request: ParserRequest) -> None:
        self._parser = parser
        self._request = request
        self._held = ""
        """Text that is not decided; it begins with a marker where ``_is_open``."""
        self._unread: list[str] = []
        """What came behind it."""
        self._num_chars = 0
        """Of both."""
        self._next_read = 0
        self._may_have_ended = False
        self._is_open = False
        self._is_first = True
        """Nothing but blank text was decided so far."""
        self._is_behind_call = False
        self._blank = ""
        """Blank text of which it is open whether it is content."""
        self._num_calls = 0

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        self._unread.append(text)
        self._num_chars += len(text)
        self._may_have_ended |= any(char in text for char in self._parser.closers)
        if self._is_open and self._num_chars > MAX_READ_ALWAYS:
            is_due = self._may_have_ended and self._num_chars >= self._next_read
            if not is_due:
                return DeltaMessage()
        return self._decide(is_whole=False)

    def end(self) -> DeltaMessage:
        message = self._decide(is_whole=True)
        if self._blank and not self._num_calls:
            message.add(DeltaMessage(self._blank))
        self._blank = ""
        return message

    def _decide(self, is_whole: bool) -> DeltaMessage:
        self._held = "".join([self._held, *self._unread])
        self._unread.clear()
        self._may_have_ended = False
        message = DeltaMessage()
        num_unfinished = 0
        while self._held and (self._is_open or self._find_marker(is_whole, message)):
            reading = self._parser.read_calls(self._held, 0, is_whole, self._request)
            if reading is None and not is_whole:
                break
            self._is_open = False
            if reading is not None and reading.calls:
                self._take_calls(reading.calls, message)
                self._held = self._held[reading.end :]
                continue
            num_unfinished += reading is None
            end = 1 if reading is None else max(1, reading.end)
            if num_unfinished == MAX_UNFINISHED:
                end = len(self._held)
            self._take_content(self._held[:end], message)
            self._held = self._held[end:]
        self._num_chars = len(self._held)
        self._next_read = int(self._num_chars * GROWTH)
        return message

    def _find_marker(self, is_whole: bool, message: DeltaMessage) -> bool:
        """Take what is in front of the next marker; whether there is one."""
        start, self._is_open = self._next_marker(is_whole)
        self._take_content(self._held[:start], message)
        self._held = self._held[start:]
        return self._is_open

    def _next_marker(self, is_whole: bool) -> tuple[int, bool]:
        """How much of what is held is content for sure, and whether a marker is behind it."""
        parser, held = self._parser, self._held
        if self._is_first:
            begin = len(held) - len(held.lstrip())
            if held.startswith(parser.first_markers, begin):
                return begin, True
            rest = held[begin:]
            is_beginning = any(marker.startswith(rest) for marker in parser.first_markers)
            if is_beginning and not is_whole:
                return begin, False
        start = first_marker(held, parser.start_markers)
        if start >= 0:
            return start, True
        num_kept = 0 if is_whole else num_held(held, parser.start_markers)
        return len(held) - num_kept, False

    def _take_content(self, text: str, message: DeltaMessage) -> None:
        if not text:
            return
        may_be_none = self._blank or self._is_first or self._is_behind_call
        if may_be_none and not text.strip():
            self._blank += text
            return
        self._is_first = self._is_behind_call = False
        message.add(DeltaMessage(self._blank + text))
        self._blank = ""

    def _take_calls(self, calls: Sequence[FunctionCall], message: DeltaMessage) -> None:
        self._blank = ""
        self._is_first, self._is_behind_call = False, True
        for call in calls:
            message.tool_calls.append(
                DeltaToolCall.begin(
                    self._num_calls, self._parser.make_id(), call.name, call.arguments
                )
            )
            self._num_calls += 1


class WholeCalls:
    """Of a parser that knows whole texts alone: what is before its first marker is content, the
    rest is given out at the end."""

    def __init__(self, parser: ToolParser, request: ParserRequest) -> None:
        self._parser = parser
        self._request = request
        self._text = ""
        self._num_shown = 0
        self._is_open = parser.start_markers is None

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        start = self._num_shown
        self._text += text
        if self._is_open:
            return DeltaMessage()
        markers = self._parser.start_markers or ()
        found = first_marker(self._text, markers, start)
        self._is_open = found >= 0
        certain = found if found >= 0 else len(self._text) - num_held(self._text[start:], markers)
        # Blank text before a call may be none of the content: the parser says so at the end.
        certain = start + len(self._text[start:certain].rstrip())
        self._num_shown = max(start, certain)
        return DeltaMessage(self._text[start : self._num_shown])

    def end(self) -> DeltaMessage:
        whole = self._parser.extract_tool_calls(self._text, self._request)
        calls = [
            DeltaToolCall.begin(at, call.id, call.function.name, call.function.arguments)
            for at, call in enumerate(whole.tool_calls)
        ]
        return DeltaMessage(self._rest(whole), tool_calls=calls)

    def _rest(self, whole: ExtractedToolCallInformation) -> str:
        """What was not given out of the content. What is before the first marker stays where it is,
        also where the parser says otherwise: it is out."""
        content, shown = whole.content or "", self._text[: self._num_shown]
        if content.startswith(shown):
            return content[len(shown) :]
        stripped = shown.lstrip()
        return content[len(stripped) :] if content.startswith(stripped) else ""


class OwnCalls:
    """Of a parser with a streaming method of its own. A call has its id in its first part: it gets
    one there where the parser gives none, and loses those of later parts."""

    def __init__(self, parser: ToolParser, request: ParserRequest) -> None:
        self._parser = parser
        self._request = request
        self._text = ""
        self._token_ids: list[int] = []
        self._last_index = 0
        self._begun: set[int] = set()

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        if not text and not token_ids:
            return DeltaMessage()
        text_before, ids_before = self._text, self._token_ids
        self._text, self._token_ids = text_before + text, [*ids_before, *token_ids]
        found = self._parser.extract_tool_calls_streaming(
            text_before,
            self._text,
            text,
            ids_before,
            self._token_ids,
            list(token_ids),
            self._request,
        )
        if found is None:
            return DeltaMessage()
        for call in found.tool_calls:
            self._last_index = max(self._last_index, call.index)
            is_first = call.index not in self._begun
            self._begun.add(call.index)
            call.id = (call.id or self._parser.make_id()) if is_first else None
        return found

    def end(self) -> DeltaMessage:
        rest = self._parser.get_remaining_unstreamed_args()
        return DeltaMessage(tool_calls=[DeltaToolCall.more(self._last_index, rest)] if rest else [])
