"""Text that grows: whatever the cuts, the pieces are the decoded whole, and each is final."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, example, given, settings
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


@COMMON
@given(ids=st.lists(st.integers(0, 430), max_size=40))
def test_every_prefix_of_whole_characters_is_its_decoded_whole(
    byte_level: Tokenizer, ids: list[int]
) -> None:
    detokenizer, found = IncrementalDetokenizer(byte_level, (), False), ""
    for end, token_id in enumerate(ids, start=1):
        found += detokenizer.push([token_id])
        held = bytes_of(byte_level, ids[:end]).decode(errors="replace").removeprefix(found)
        assert held in ("", REPLACEMENT)  # the beginning of one character at most
        assert byte_level.decode(ids[:end], False) == found + held


SOME_WORDS = ("▁the", "▁cat", "s", "▁", "▁日本", "é", "!")


@COMMON
@given(
    parts=st.lists(
        st.one_of(
            st.sampled_from(SOME_WORDS),
            st.sampled_from("é🙂日本\u0301\u200d👩👧ñ").map(str.encode),
            st.integers(0, 255).map(lambda byte: bytes([byte])),
        ),
        max_size=12,
    )
)
@example(parts=["▁the", "👩".encode(), "\u200d".encode(), "👧".encode(), "s"])
def test_single_bytes_beside_words_are_the_decoded_whole_wherever_it_has_whole_characters(
    word_pieces: Tokenizer, parts: list[str | bytes]
) -> None:
    """A decoder of this kind spoils a whole run of bytes for one that is wrong: then there is no
    text to compare with."""
    spelled = [[p] if isinstance(p, str) else [f"<0x{byte:02X}>" for byte in p] for p in parts]
    ids = [word_pieces.backend.token_to_id(token) for token in itertools.chain(*spelled)]
    detokenizer, found = IncrementalDetokenizer(word_pieces), ""
    for end, token_id in enumerate(ids, start=1):
        found += detokenizer.push([token_id])
        whole = word_pieces.decode(ids[:end])
        if REPLACEMENT not in whole:
            assert found == whole


def bytes_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(token_id) for token_id in ids)


@COMMON
@given(ids=st.lists(st.integers(0, 430), max_size=30))
@example(ids=[3, 4])
def test_the_bytes_of_tokens_are_pythons_own_of_the_text(
    byte_level: Tokenizer, ids: list[int]
) -> None:
    assert bytes_of(byte_level, ids).decode(errors="replace") == byte_level.decode(ids, False)


def test_spaces_between_special_tokens_are_shown_or_not(spaced_words: Tokenizer) -> None:
    ids = [0, 3, 4, 1, 4]
    for spaces, text in ((True, "hello <a> <b> world <b>"), (False, "hello <a><b> world <b>")):
        detokenizer = IncrementalDetokenizer(spaced_words, (), False, spaces)
        assert detokenizer.push(ids) + detokenizer.flush() == text
    assert spaced_words.decode(ids, False) == "hello <a> <b> world <b>"


def test_hidden_tokens_leave_no_spaces(spaced_words: Tokenizer) -> None:
    for spaces in (True, False):
        detokenizer = IncrementalDetokenizer(spaced_words, (), True, spaces)
        assert detokenizer.push([0, 3, 4, 1]) == "hello world"


@pytest.mark.parametrize(
    ("before", "then", "ahead"),
    [
        ("a", "b", 0),
        ("aé", "b", 0),
        ("a\xf0", "\x9f", 0),
        ("a\xf0\x9f", "\x99", 0),
        ("a\xf0\x9f", "b", 1),
        ("a\xf0\x9f", "\xf0", 1),
        ("a\xf0", "\x80", 1),
        ("a\xf0\x9f", None, 1),
        ("a", None, 0),
    ],
)
@pytest.mark.parametrize("kind", ["bytes", "words"])
def test_what_was_held_back_is_ahead_of_a_token_that_does_not_go_on_with_it(
    byte_level: Tokenizer,
    word_pieces: Tokenizer,
    kind: str,
    before: str,
    then: str | None,
    ahead: int,
) -> None:
    def ids(text: str) -> list[int]:
        single = text.encode("latin-1") if "\xe9" not in text else text.encode()
        if kind == "words":
            return [word_pieces.backend.token_to_id(f"<0x{byte:02X}>") for byte in single]
        of = {byte_level.token_bytes(i): i for i in reversed(range(3, 420))}
        return [of[bytes([byte])] for byte in single]

    detokenizer = IncrementalDetokenizer(byte_level if kind == "bytes" else word_pieces)
    detokenizer.push(ids(before))
    found = detokenizer.num_ahead(None if then is None else ids(then)[0])
    # There each wrong byte is a character of its own.
    num_held = len(before.lstrip("aé"))
    assert found == (num_held if kind == "words" and ahead else ahead)


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
