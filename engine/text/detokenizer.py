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
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._decoder: _ByteLevelDecoder | _WindowDecoder
        hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        if tokenizer.is_byte_level:
            self._decoder = _ByteLevelDecoder(tokenizer, hidden)
        else:
            joined = frozenset() if spaces_between_special_tokens else tokenizer.special_ids
            context = list(prompt_token_ids[-_CONTEXT_TOKENS:])
            self._decoder = _WindowDecoder(tokenizer, context, hidden, joined)

    def push(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete; empty while a character is incomplete."""
        return "".join([self._decoder.push(token_id) for token_id in ids])

    def num_ahead(self, token_id: int | None) -> int:
        """How many characters would stand between what has been given out and the token, if it came
        next: those that the bytes held back become, unless the token goes on with them.

        Args:
            token_id: ``None`` is the end, at which nothing goes on.
        """
        return self._decoder.num_ahead(token_id)

    def flush(self) -> str:
        """What is held back, with U+FFFD for bytes that never became a character. Call once."""
        return self._decoder.flush()


class _ByteLevelDecoder:
    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._hidden = hidden
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._hidden:
            return ""
        return self._utf8.decode(self._token_bytes(token_id))

    def num_ahead(self, token_id: int | None) -> int:
        held, _ = self._utf8.getstate()
        if not held or token_id in self._hidden:
            return 0
        goes_on = token_id is not None and _goes_on(held, self._token_bytes(token_id))
        return 0 if goes_on else len(held.decode(errors="replace"))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """Decodes the tokens of the last piece of text and those after it: ``tokens[:num_read]`` have
    been given out, the rest has not.

    Args:
        joined: between two of these in a row the vocabulary's own space is left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: list[int],
        hidden: frozenset[int],
        joined: frozenset[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._joined = joined
        self._is_after_joined = False
        self._tokens = [token_id for token_id in context if token_id not in hidden]
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
        return self._without_space(token_id, new) if self._joined else new

    def num_ahead(self, token_id: int | None) -> int:
        if not self._num_incomplete or token_id in self._hidden:
            return 0
        token_bytes = self._tokenizer.token_bytes
        held = b"".join([token_bytes(held_id) for held_id in self._tokens[self._num_read :]])
        goes_on = token_id is not None and _goes_on(held, token_bytes(token_id))
        return 0 if goes_on else len(self._new_text())

    def flush(self) -> str:
        return self._new_text()

    def _new_text(self) -> str:
        decode = self._tokenizer.decode
        before = decode(self._tokens[: self._num_read], False)
        return decode(self._tokens, False)[len(before) :]

    def _without_space(self, token_id: int, text: str) -> str:
        is_after, self._is_after_joined = self._is_after_joined, token_id in self._joined
        if is_after and self._is_after_joined:
            return self._tokenizer.id_to_token(token_id) or text
        return text


def _goes_on(held: bytes, more: bytes) -> bool:
    """Whether a character of which the first bytes are held goes on with the first of ``more``.

    Not asked of Python's incremental decoder, which also holds half of a surrogate pair back.
    """
    begun = held + more[:1]
    return not more or any(_is_text(begun + b"\x80" * num_lacking) for num_lacking in range(3))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
