"""``ReplySplitter``: the text of one choice of a chat as reasoning, content and calls of tools.

It is pushed what the output processor gives out and hands on what is certain; the whole reply is
the sum of it. How each parser is streamed is ``reasoning_streams``' and ``call_streams``', what the
wire makes of it the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .call_streams import CallStream
from .tool_calls import DeltaMessage


class ReplySplitter:
    """
    Args:
        reasoning: ``None``: the text has none.
        calls: finds them in what is behind the reasoning; ``None``: all of it is content.
        count_reasoning: how many of the reply's first tokens are reasoning.
        shows_reasoning: else it is left out.
        max_calls: calls beyond are left out.

    Attributes:
        num_calls: of those that were given out.
        num_reasoning_tokens: all tokens until there is content.
    """

    def __init__(
        self,
        reasoning: CallStream | None,
        calls: CallStream | None,
        *,
        count_reasoning: Callable[[Sequence[int]], int] | None = None,
        shows_reasoning: bool = True,
        max_calls: int | None = None,
    ) -> None:
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self._reasoning = reasoning
        self._calls = calls
        self._count_reasoning = count_reasoning
        self._shows_reasoning = shows_reasoning
        self._max_calls = max_calls
        self._token_ids: list[int] = []
        self._is_content = reasoning is None
        """There is no more reasoning."""

    def push(self, text: str, token_ids: Sequence[int], is_last: bool) -> DeltaMessage:
        """What the text adds. After the last one there is none.

        Args:
            token_ids: new tokens, for parsers that look at them; their text may come later.
        """
        message = DeltaMessage(text)
        if self._reasoning is not None:
            message = self._reasoning.push(text, token_ids)
            if is_last:
                message.add(self._reasoning.end())
            self._is_content = self._is_content or bool(message.content)
            self._count(token_ids, is_over=is_last or self._is_content)
        if self._calls is not None and (self._is_content or is_last):
            found = self._calls.push(message.content or "", token_ids)
            if is_last:
                found.add(self._calls.end())
            message = DeltaMessage(found.content, message.reasoning, found.tool_calls)
        return self._shown(message)

    def _shown(self, message: DeltaMessage) -> DeltaMessage:
        if not self._shows_reasoning:
            message.reasoning = None
        if self._max_calls is not None:
            message.tool_calls = [
                call for call in message.tool_calls if call.index < self._max_calls
            ]
        self.num_calls += sum(call.id is not None for call in message.tool_calls)
        return message

    def _count(self, token_ids: Sequence[int], is_over: bool) -> None:
        if self._count_reasoning is None:
            return
        self._token_ids += token_ids
        self.num_reasoning_tokens = len(self._token_ids)
        if is_over:
            self.num_reasoning_tokens = self._count_reasoning(self._token_ids)
            self._count_reasoning = None
