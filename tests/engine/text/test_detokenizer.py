"""Text that grows: whatever the cuts, the pieces are the decoded whole, and each is final."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookserve.engine.text.detokenizer import REPLACEMENT, IncrementalDetokenizer
from hookserve.engine.text.tokenizer import Tokenizer

COMMON = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TEXT = st.text(
    alphabet=st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("ab é日🙂👩‍👩‍👧 \n" + REPLACEMENT)
    ),
    max_size=40,
)


def cut(items: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(items), *(c % (len(items) + 1) for c in cuts)})
    return [items[a:b] for a, b in itertools.pairwise(edges)]


def pieces(tokenizer: Tokenizer, parts: list[list[int]], skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip)
    found = [detokenizer.push(part) for part in parts]
    return [*found, detokenizer.flush()]


@COMMON
@given(
    ids=st.lists(st.integers(0, 430), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=10),
    skip=st.booleans(),
)
def test_any_ids_in_any_cuts_give_the_decoded_whole(
    byte_level: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    """Also bytes that are no characters: U+FFFD comes exactly where the whole has it."""
    found = "".join(pieces(byte_level, cut(ids, cuts), skip))
    assert found == byte_level.decode(ids, skip_special_tokens=skip)


@COMMON
@given(text=TEXT, cuts=st.lists(st.integers(0, 200), max_size=10))
def test_a_text_comes_without_replacement_characters_of_ours(
    byte_level: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    found = pieces(byte_level, cut(ids, cuts), False)
    assert "".join(found) == text
    assert found[-1] == ""
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in found)


def test_a_character_comes_with_its_last_byte(byte_level: Tokenizer) -> None:
    ids = [byte_level.backend.token_to_id(c) for c in "ðŁĻĪ"]  # the bytes of U+1F648
    detokenizer = IncrementalDetokenizer(byte_level)
    assert [detokenizer.push([i]) for i in ids] == ["", "", "", "\U0001f648"]


def test_a_character_that_never_ends_is_flushed_once(byte_level: Tokenizer) -> None:
    ids = [byte_level.backend.token_to_id(c) for c in "aðŁ"]
    assert pieces(byte_level, [[i] for i in ids], True) == ["a", "", "", REPLACEMENT]


def test_a_token_is_looked_at_once(byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant work for each token: the whole is never decoded again."""

    def decode(*args: object) -> str:
        raise AssertionError("decoded again")

    ids = byte_level.encode("the quick brown fox " * 20)
    monkeypatch.setattr(byte_level, "decode", decode)
    assert "".join(pieces(byte_level, [[i] for i in ids], True)) == "the quick brown fox " * 20


@COMMON
@given(text=TEXT.filter(lambda text: REPLACEMENT not in text))
def test_a_vocabulary_of_another_kind_gives_the_same_text(
    word_pieces: Tokenizer, text: str
) -> None:
    ids = word_pieces.encode(text, add_special_tokens=False)
    found = pieces(word_pieces, [[i] for i in ids], True)
    assert "".join(found) == word_pieces.decode(ids)
    assert not any(REPLACEMENT in piece for piece in found)


def test_the_prompt_decides_whether_the_reply_begins_with_a_space(word_pieces: Tokenizer) -> None:
    cat = word_pieces.backend.token_to_id("▁cat")
    alone = IncrementalDetokenizer(word_pieces, [])
    after = IncrementalDetokenizer(word_pieces, word_pieces.encode("the"))
    assert alone.push([cat]) == "cat"
    assert after.push([cat]) == " cat"


def test_bytes_that_are_no_character_do_not_hold_the_rest_back(word_pieces: Tokenizer) -> None:
    lone = word_pieces.backend.token_to_id("<0xE3>")
    the = word_pieces.backend.token_to_id("▁the")
    found = pieces(word_pieces, [[lone]] * 5 + [[the]], True)
    assert "".join(found) == word_pieces.decode([lone] * 5 + [the])
    assert found[3] != ""


def test_tokens_without_text_do_not_make_later_ones_cost_more(
    word_pieces: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may have more token ids than its vocabulary."""
    the, cat = (word_pieces.backend.token_to_id(piece) for piece in ("▁the", "▁cat"))
    beyond = word_pieces.backend.get_vocab_size() + 1
    decode, lengths = word_pieces.decode, []

    def counted(ids: list[int], skip: bool = True) -> str:
        lengths.append(len(ids))
        return decode(ids, skip)

    monkeypatch.setattr(word_pieces, "decode", counted)
    found = pieces(word_pieces, [[the], *[[beyond]] * 300, [cat]], True)
    assert "".join(found) == "the cat"
    assert max(lengths) < 20
