"""``OutputProcessor``: one request's tokens to the text that its client sees.

The only one: streamed replies send its deltas, whole replies are their fold. It finds stop strings,
holds back what may still become one, counts the tokens that belong to the reply, and keeps their
log-probabilities with them. Parsing the text further (reasoning, tools) and the wire are not its
business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.sampling_params import SamplingParams

from .detokenizer import IncrementalDetokenizer
from .held_end import num_held
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one push added to the reply. ``finish_reason`` is set once, in the last delta."""

    text: str
    token_ids: list[int]
    """Tokens that belong to the reply; those after a stop string do not."""
    finish_reason: str | None
    stop_reason: str | int | None
    """The stop string, or the stop token's id; ``None`` for the model's own end."""
    stopped_by_text: bool
    """A stop string was found: unless the engine has ended the request itself in this very step,
    it has to be told to finish."""
    logprobs: list[TokenLogprobs] | None = None
    """Parallel to ``token_ids``, where the request asked for them."""
    text_offsets: list[int] | None = None
    """With ``logprobs``: how many characters of generated text are before each token. A part of a
    character is where the character begins; text that a stop string cuts away is counted."""


class OutputProcessor:
    """Push a request's new tokens in order; after the finishing delta all others are empty."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
    ) -> None:
        assert all(params.stop), "empty stop strings are refused where requests are checked"
        self.num_tokens = 0
        """Completion tokens so far, for usage; the one that completed a stop string counts."""
        self.is_finished = False
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_token_ids,
            params.skip_special_tokens,
            params.spaces_between_special_tokens,
        )
        self._stop = params.stop
        self._min_tokens = params.min_tokens
        self._include_stop = params.include_stop_str_in_output
        has_form = params.structured_outputs is not None
        self._end_ids = params.all_stop_token_ids if has_form else None
        """Of a text that may end without one of them."""
        self._held = ""
        self._num_chars = 0

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | None = None,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> TextDelta:
        """Add one step's tokens.

        Args:
            token_ids: new tokens, the one that ended the reply included.
            finish_reason: the engine's; ``"stop"`` means that the last token is an end or stop
                token, whose own text is not part of the reply (unless stop strings are), or that
                the text has the form that it must have, and nothing may follow.
            stop_reason: the stop token's id.
            logprobs: parallel to ``token_ids``.
        """
        if self.is_finished:
            return TextDelta("", [], None, None, False)
        num_shown = self._num_shown(token_ids, finish_reason)
        pieces: list[str] = []
        offsets: list[int] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            is_shown = index < num_shown
            if logprobs is not None:
                ahead = self._detokenizer.num_ahead(token_id if is_shown else None)
                offsets.append(self._num_chars + ahead)
            new = self._detokenizer.push((token_id,)) if is_shown else ""
            text, stop = self._release(new)
            pieces.append(text)
            if stop is not None:
                kept = None if logprobs is None else logprobs[: index + 1]
                return self._end("".join(pieces), token_ids[: index + 1], stop, kept, offsets)
        if finish_reason is None:
            where = None if logprobs is None else offsets
            return TextDelta("".join(pieces), list(token_ids), None, None, False, logprobs, where)
        text, stop = self._release(self._detokenizer.flush())
        pieces.append(text)
        if stop is not None:
            return self._end("".join(pieces), token_ids, stop, logprobs, offsets)
        pieces.append(self._held)
        return self._end("".join(pieces), token_ids, stop_reason, logprobs, offsets, finish_reason)

    def _num_shown(self, token_ids: Sequence[int], finish_reason: str | None) -> int:
        """How many of the tokens are text: all but one that ends it."""
        if finish_reason != "stop" or self._include_stop or not token_ids:
            return len(token_ids)
        ends_whole = self._end_ids is not None and token_ids[-1] not in self._end_ids
        return len(token_ids) if ends_whole else len(token_ids) - 1

    def _end(
        self,
        text: str,
        token_ids: Sequence[int],
        stop_reason: str | int | None,
        logprobs: list[TokenLogprobs] | None,
        offsets: list[int],
        finish_reason: str = "stop",
    ) -> TextDelta:
        """The last delta; a text as ``stop_reason`` is the stop string that was found."""
        self._held = ""
        self.is_finished = True
        return TextDelta(
            text,
            list(token_ids),
            finish_reason,
            stop_reason,
            isinstance(stop_reason, str),
            logprobs,
            None if logprobs is None else offsets,
        )

    def _release(self, new: str) -> tuple[str, str | None]:
        """Add text; return what is certain by now, and the stop string that it completed.

        A stop string that is complete before there are ``min_tokens`` tokens is text like any
        other.
        """
        self._num_chars += len(new)
        if not self._stop:
            return new, None
        if not new:
            return "", None
        text = self._held + new
        can_stop = self.num_tokens > self._min_tokens
        found = self._first_stop(text, len(self._held)) if can_stop else None
        if found is not None:
            start, stop = found
            return text[: start + len(stop) if self._include_stop else start], stop
        num_certain = len(text) - num_held(text, self._stop)
        self._held = text[num_certain:]
        return text[:num_certain], None

    def _first_stop(self, text: str, num_known: int) -> tuple[int, str] | None:
        """Where the stop string that is complete first, beyond the first ``num_known`` characters,
        begins; of two, the longer one.

        By the end and not by the beginning: so the result is the same however the text arrives.
        """
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = text.find(stop, max(0, num_known - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                if best is None or candidate < best:
                    best = candidate
        return None if best is None else (best[1], best[2])
