"""Texts that must not be generated, as the token sequences that would generate them."""

from __future__ import annotations

from collections.abc import Iterable

from .tokenizer import Tokenizer


def encode_bad_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """For each text the tokens with which it opens a line, and those with which it follows a space
    where it then begins with another token: in most vocabularies these are different words.

    Texts that have no tokens at all are left out.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        opening = tuple(tokenizer.encode(bare, add_special_tokens=False))
        spaced = tuple(tokenizer.encode(" " + bare, add_special_tokens=False))
        found[opening] = None
        if spaced[:1] != opening[:1]:
            found[spaced] = None
    found.pop((), None)
    return tuple(found)
