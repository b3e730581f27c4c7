"""What a caller gets back: ``RequestOutput`` with one ``CompletionOutput`` for each sequence.

Names and meaning are the ecosystem's (vLLM's). Putting them together from the engine's steps is
``output_assembler``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .stats import RequestStateStats
    from .text.tool_calls import ToolCall


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position."""

    logprob: float
    rank: int | None = None
    """1 is the likeliest token of the vocabulary."""
    decoded_token: str | None = None
    """The token's own text; bytes that are no whole character are U+FFFD."""


@dataclass
class CompletionOutput:
    """One generated sequence, or (with ``RequestOutputKind.DELTA``) what was added to it."""

    index: int
    text: str
    token_ids: list[int]
    """The token that ended the sequence included. Grows from one output to the next where outputs
    are cumulative: one list, to be read only."""
    cumulative_logprob: float | None = None
    """Sum over the tokens; ``None`` where nobody needed log-probabilities."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Parallel to ``token_ids``: the token and the best ones, by token id."""
    finish_reason: str | None = None
    """``"stop"``, ``"length"``, ``"abort"``, ``"error"``; ``None`` while the sequence grows."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; ``None`` for the model's own end token."""
    error: str | None = None
    """One sentence; only with ``finish_reason == "error"``."""
    reasoning: str | None = None
    """Of a chat that is parsed: what the model thought; ``text`` stays whole."""
    content: str | None = None
    """Of a chat that is parsed: what it answers, without reasoning and calls."""
    tool_calls: list[ToolCall] | None = None
    """Of a chat that is parsed: the calls of tools."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """One request: its prompt and all of its sequences."""

    request_id: str
    prompt: str | None
    """``None`` if the prompt was given as token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """One for each prompt token, ``None`` for the first."""
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    metrics: RequestStateStats | None = None
    """Where statistics are collected: when the first sequence was queued, scheduled, and so on."""
    num_cached_tokens: int | None = None
    """Prompt tokens taken from the prefix cache; ``None`` before the first token."""
