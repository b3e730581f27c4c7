"""``OutputProcessor``: one request's tokens to the text that its client sees.

The only one: streamed replies send its deltas, whole replies are their fold. It finds stop strings,
holds back what may still become one, and counts the tokens that belong to the reply. Parsing the
text further (reasoning, tools) and the wire are not its business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookserve.engine.sampling_params import SamplingParams

from .detokenizer import IncrementalDetokenizer
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
            tokenizer, prompt_token_ids, params.skip_special_tokens
        )
        self._stop = params.stop
        self._include_stop = params.include_stop_str_in_output
        self._held = ""

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None,
        stop_reason: int | None = None,
    ) -> TextDelta:
        """Add one step's tokens.

        Args:
            token_ids: new tokens, the one that ended the reply included.
            finish_reason: the engine's; ``"stop"`` means that the last token is an end or stop
                token, whose own text is not part of the reply (unless stop strings are).
            stop_reason: the stop token's id.
        """
        if self.is_finished:
            return TextDelta("", [], None, None, False)
        num_shown = len(token_ids)
        if finish_reason == "stop" and not self._include_stop:
            num_shown -= 1
        pieces: list[str] = []
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            new = self._detokenizer.push((token_id,)) if index < num_shown else ""
            text, stop = self._release(new)
            pieces.append(text)
            if stop is not None:
                return self._stopped("".join(pieces), list(token_ids[: index + 1]), stop)
        if finish_reason is None:
            return TextDelta("".join(pieces), list(token_ids), None, None, False)
        text, stop = self._release(self._detokenizer.flush())
        pieces.append(text)
        if stop is not None:
            return self._stopped("".join(pieces), list(token_ids), stop)
        pieces.append(self._held)
        self._held = ""
        self.is_finished = True
        return TextDelta("".join(pieces), list(token_ids), finish_reason, stop_reason, False)

    def _stopped(self, text: str, token_ids: list[int], stop: str) -> TextDelta:
        self._held = ""
        self.is_finished = True
        return TextDelta(text, token_ids, "stop", stop, True)

    def _release(self, new: str) -> tuple[str, str | None]:
        """Add text; return what is certain by now, and the stop string that it completed."""
        if not self._stop:
            return new, None
        if not new:
            return "", None
        text = self._held + new
        found = self._first_stop(text)
        if found is not None:
            start, stop = found
            return text[: start + len(stop) if self._include_stop else start], stop
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """Where the stop string that is complete first begins; of two, the longer one.

        By the end and not by the beginning: so the result is the same however the text arrives.
        """
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = text.find(stop)
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                if best is None or candidate < best:
                    best = candidate
        return None if best is None else (best[1], best[2])

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
