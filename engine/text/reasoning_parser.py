"""``ReasoningParser``: parts a model's text into what it thought and what it answers. The base of
every parser, and ``MarkedReasoningParser``, of those whose thoughts end with a marker.

Method names are the ecosystem's (vLLM's). There is one instance for each choice of a request.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from .tokenizer import Tokenizer
from .tool_calls import DeltaMessage, ParserRequest

_NUM_LAST_TOKENS = 16
"""Of the prompt, among which a template's own marker is looked for."""


class ReasoningParser(abc.ABC):
    """
    Attributes:
        reasoning_start_str, reasoning_end_str: the markers; ``None``: there are none, so that a
            parser without a streaming method of its own gives its text at the end.

    Args:
        args, kwargs: ``chat_template_kwargs`` of the request; there may be more.
    """

    reasoning_start_str: ClassVar[str | None] = None
    reasoning_end_str: ClassVar[str | None] = None

    def __init__(self, tokenizer: Tokenizer, *args: Any, **kwargs: Any) -> None:
        self.model_tokenizer = tokenizer
        self.chat_template_kwargs: dict[str, Any] = dict(kwargs.get("chat_template_kwargs") or {})
        self._generic: Any = None

    @functools.cached_property
    def vocab(self) -> dict[str, int]:
        """Token to id."""
        return self.model_tokenizer.get_vocab()

    def adjust_request(self, request: ParserRequest) -> ParserRequest:
        """As ``ToolParser.adjust_request``."""
        return request

    def is_thinking(self) -> bool:
        """Whether a text of this request may begin with reasoning at all."""
        return True

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether nothing that follows is reasoning. Asked about prompts: a template that turns
        thinking off writes an end marker itself."""
        if self.reasoning_end_str is None:
            return False
        tail = self.model_tokenizer.decode(list(input_ids)[-_NUM_LAST_TOKENS:], False)
        return tail.rstrip().endswith(self.reasoning_end_str)

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Sequence[int]
    ) -> bool:
        """Whether the reasoning of a reply is over, by its tokens so far and those that the last
        step added; asked at each step until it is, of a parser with a streaming method of its
        own. What is behind is looked at for calls from then on."""
        return self.is_reasoning_end(input_ids)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens behind the reasoning; none where no marker ends it."""
        marker = self.reasoning_end_str
        if not marker:
            return []
        text = self.model_tokenizer.decode(input_ids, False)
        at = text.find(marker)
        return [] if at < 0 else input_ids[self._num_ids_of(input_ids, at + len(marker)) :]

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """How many of a reply's tokens there are up to the end of its reasoning: markers that are
        before it count, the end marker does not."""
        ids = list(token_ids)
        text = self.model_tokenizer.decode(ids, False)
        reasoning, _ = self.extract_reasoning(text, ParserRequest())
        if not reasoning:
            return 0
        marker = self.reasoning_start_str or ""
        start = len(marker) if text.lstrip().startswith(marker) else 0
        return self._num_ids_of(ids, text.find(reasoning, start) + len(reasoning))

    def _num_ids_of(self, ids: list[int], num_chars: int) -> int:
        """The fewest first tokens whose text has so many characters."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self.model_tokenizer.decode(ids[:middle], False)) >= num_chars:
                high = middle
            else:
                low = middle + 1
        return low

    @abc.abstractmethod
    def extract_reasoning(
        self, model_output: str, request: ParserRequest
    ) -> tuple[str | None, str | None]:
        """Reasoning and content of a whole text; ``None``: there is none of it."""

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """As ``ToolParser.extract_tool_calls_streaming``."""
        from .reasoning_streams import generic_reasoning

        if not previous_text:
            self._generic = generic_reasoning(self, ParserRequest())
        return self._generic.push(delta_text, delta_token_ids) or None


class MarkedReasoningParser(ReasoningParser):
    """All text up to ``reasoning_end_str`` is reasoning, a ``reasoning_start_str`` at its beginning
    left out: templates may write it themselves. Without an end marker all of it is: the text was
    cut short while the model thought."""

    reasoning_start_str: ClassVar[str] = "<think>"
    reasoning_end_str: ClassVar[str] = "</think>"

    def adjust_request(self, request: ParserRequest) -> ParserRequest:
        """Markers that are special tokens must be seen."""
        markers = (self.reasoning_start_str, self.reasoning_end_str)
        if any(map(self.model_tokenizer.is_special, markers)):
            request.skip_special_tokens = False
        return request

    def extract_reasoning(
        self, model_output: str, request: ParserRequest
    ) -> tuple[str | None, str | None]:
        from .reasoning_streams import MarkedReasoning

        stream = MarkedReasoning(self)
        message = stream.push(model_output, ())
        message.add(stream.end())
        return message.reasoning, message.content
