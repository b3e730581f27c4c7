"""``IncrementalDetokenizer``: the text of a sequence that grows, without decoding it again.

What it gives out is final: bytes that are only the beginning of a character are held back, and the
pieces put together are exactly the decoded whole.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_CONTEXT_TOKENS = 6
_MAX_INCOMPLETE_TOKENS = 3
"""A character has at most four bytes: a fourth that completes none shows that they are none."""


class IncrementalDetokenizer:
    """Feed token ids, take text.

    A byte-level vocabulary costs constant time for each token. Any other one is decoded in a window
    of a few tokens, since there the text of a token depends on its neighbours: the end of the
    prompt decides whether the first token begins with a space.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._decoder: _ByteLevelDecoder | _WindowDecoder
        if tokenizer.is_byte_level:
            self._decoder = _ByteLevelDecoder(tokenizer, skip_special_tokens)
        else:
            context = list(prompt_token_ids[-_CONTEXT_TOKENS:])
            self._decoder = _WindowDecoder(tokenizer, context, skip_special_tokens)

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        return "".join([self._decoder.push(token_id) for token_id in ids])

    def flush(self) -> str:
        """What is held back, with U+FFFD for bytes that never became a character. Call once."""
        return self._decoder.flush()


class _ByteLevelDecoder:
    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        return self._utf8.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Decodes the tokens of the last piece of text and those after it: ``tokens[:num_read]`` have
    been given out, the rest has not."""

    def __init__(self, tokenizer: Tokenizer, context: list[int], skip_special_tokens: bool) -> None:
        self._decode = tokenizer.decode
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._tokens = [token_id for token_id in context if token_id not in self._hidden]
        self._num_read = len(self._tokens)
        self._num_incomplete = 0

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        self._tokens.append(token_id)
        new = self._new_text()
        if new.endswith(REPLACEMENT) and self._num_incomplete < _MAX_INCOMPLETE_TOKENS:
            self._num_incomplete += 1
            return ""
        self._num_incomplete = 0
        if new:
            self._tokens = self._tokens[self._num_read :]
            self._num_read = len(self._tokens)
        elif len(self._tokens) - self._num_read > _CONTEXT_TOKENS:
            self._tokens.pop()  # the window stays short, however many tokens have no text
        return new

    def flush(self) -> str:
        return self._new_text()

    def _new_text(self) -> str:
        before = self._decode(self._tokens[: self._num_read], False)
        return self._decode(self._tokens, False)[len(before) :]
