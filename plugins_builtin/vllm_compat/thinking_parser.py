"""``BaseThinkingReasoningParser``: our parser of two markers, as the ecosystem's derive from it
(the markers are properties, and each of them is one token).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from hookserve.engine.text.reasoning_parser import MarkedReasoningParser
from hookserve.engine.text.tokenizer import Tokenizer


class BaseThinkingReasoningParser(MarkedReasoningParser):
    """
    Attributes:
        start_token_id, end_token_id: what the markers are.

    Raises:
        RuntimeError: a marker is no token of the model's.
    """

    def __init__(self, tokenizer: Tokenizer, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.start_token_id = self._token_id(self.start_token)
        self.end_token_id = self._token_id(self.end_token)

    def _token_id(self, marker: str) -> int:
        found = self.model_tokenizer.token_to_id(marker)
        if found is None:
            raise RuntimeError(
                f"{type(self).__name__}: {marker!r} is no token of the model, and the end of the "
                "reasoning is found by it"
            )
        return found

    @property
    @abc.abstractmethod
    def start_token(self) -> str:
        """With which the reasoning may begin."""

    @property
    @abc.abstractmethod
    def end_token(self) -> str:
        """Behind which there is none."""

    @property
    def reasoning_start_str(self) -> str:  # type: ignore[override]
        return self.start_token

    @property
    def reasoning_end_str(self) -> str:  # type: ignore[override]
        return self.end_token

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the last of the two tokens is the one that ends it."""
        for token_id in reversed(input_ids):
            if token_id in (self.start_token_id, self.end_token_id):
                return token_id == self.end_token_id
        return False

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Sequence[int]
    ) -> bool:
        """Whether the step gave the token that ends it; what was before is not looked at again."""
        return self.end_token_id in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens behind the last one that ends the reasoning."""
        for at in range(len(input_ids) - 1, -1, -1):
            if input_ids[at] == self.end_token_id:
                return input_ids[at + 1 :]
        return []
