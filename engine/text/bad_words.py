"""Texts that must not be generated, as the sequences of tokens that spell them."""

from __future__ import annotations

from collections.abc import Iterable

from .tokenizer import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Every spelling of the words, without repeats.

    A vocabulary has other tokens for a word that begins a text than for one behind a space, so
    each word is spelled both ways. One that is made of spaces alone is spelled as it is.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        for text in (bare, " " + bare) if bare else (word,):
            found[tuple(tokenizer.encode(text, add_special_tokens=False))] = None
    found.pop((), None)
    return tuple(found)
