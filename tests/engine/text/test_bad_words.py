"""Bad words as tokens: alone, behind a space, and with nothing left out."""

from __future__ import annotations

import pytest

from hookserve.engine.text.bad_words import bad_words_token_ids
from hookserve.engine.text.tokenizer import Tokenizer


def spelled(tokenizer: Tokenizer, words: list[str]) -> list[str]:
    return [tokenizer.decode(ids, False) for ids in bad_words_token_ids(tokenizer, words)]


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ([], []),
        (["no"], ["no", " no"]),
        ([" no"], ["no", " no"]),
        (["no", "no", " no"], ["no", " no"]),
        (["no", "yes"], ["no", " no", "yes", " yes"]),
        (["  "], ["  "]),
        (["\n"], ["\n", " \n"]),
        (["🙂"], ["🙂", " 🙂"]),
    ],
)
def test_each_word_is_spelled_as_a_text_begins_and_behind_a_space(
    byte_level: Tokenizer, words: list[str], texts: list[str]
) -> None:
    assert spelled(byte_level, words) == texts


def test_where_the_space_belongs_to_the_word_both_are_one(word_pieces: Tokenizer) -> None:
    assert spelled(word_pieces, ["the"]) == ["the"]


def test_no_special_token_is_put_in_front(byte_level: Tokenizer) -> None:
    assert all(not byte_level.special_ids & set(i) for i in bad_words_token_ids(byte_level, ["a"]))
