"""``ReplySplitter``: the text of one choice of a chat as reasoning, content and calls of tools.

It is pushed what the output processor gives out and hands on what is certain; the whole reply is
the sum of it. How each parser is streamed is ``reasoning_streams``' and ``call_streams``', what the
wire makes of it the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .call_streams import CallStream
from .tool_calls import DeltaMessage


class ReasoningTokens(NamedTuple):
    """What a parser of reasoning says of a reply's tokens; the text of the last ones may be still
    to come.

    Args:
        count: how many of the first ones are reasoning.
        content: those behind the reasoning.
        has_ended: whether the reasoning is over, by all of them and the latest; ``None``: it is
            when there is content.
    """

    count: Callable[[Sequence[int]], int]
    content: Callable[[list[int]], list[int]]
    has_ended: Callable[[Sequence[int], Sequence[int]], bool] | None = None


class ReplySplitter:
    """
    Args:
        reasoning: ``None``: the text has none.
        calls: finds them in what is behind the reasoning; ``None``: all of it is content.
        tokens: given with ``reasoning``.
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
        tokens: ReasoningTokens | None = None,
        shows_reasoning: bool = True,
        max_calls: int | None = None,
    ) -> None:
        self.num_calls = 0
        self.num_reasoning_tokens = 0
        self._reasoning = reasoning
        self._calls = calls
        self._tokens = tokens
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
            if not self._is_content:
                token_ids = self._behind_reasoning(token_ids, bool(message.content), is_last)
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

    def _behind_reasoning(
        self, token_ids: Sequence[int], has_content: bool, is_last: bool
    ) -> Sequence[int]:
        """Find out whether the reasoning is over, and with which token."""
        said = self._tokens
        self._is_content = has_content
        if said is None:
            return token_ids
        self._token_ids += token_ids
        if not has_content and said.has_ended is not None:
            self._is_content = bool(said.has_ended(self._token_ids, token_ids))
        is_over = self._is_content or is_last
        self.num_reasoning_tokens = said.count(self._token_ids) if is_over else len(self._token_ids)
        if not self._is_content or self._calls is None:
            return ()
        behind = said.content(list(self._token_ids))
        return token_ids if has_content and not behind else behind
