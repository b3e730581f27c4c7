"""The output processor: stop strings, hold-back and counting, the same for every cut."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.structured_outputs import StructuredOutputsParams
from hookserve.engine.text.output import OutputProcessor, TextDelta
from hookserve.engine.text.tokenizer import Tokenizer

COMMON = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def letters(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token for each byte: the finest cut that there is."""
    ids = [tokenizer.backend.token_to_id(c) for c in spelled(text)]
    assert None not in ids
    return ids


def spelled(text: str) -> str:
    from tokenizers import pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(part for part, _ in level.pre_tokenize_str(text))


def run(
    tokenizer: Tokenizer,
    ids: list[int],
    *,
    finish: str | None = "length",
    step: int = 1,
    **params: Any,
) -> tuple[list[TextDelta], OutputProcessor]:
    processor = OutputProcessor(tokenizer, [], SamplingParams(**params))
    parts = [ids[i : i + step] for i in range(0, len(ids), step)] or [[]]
    deltas = [processor.push(p, finish if p is parts[-1] else None) for p in parts]
    return deltas, processor


def fold(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, character by character: the first stop string to be complete ends it."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@COMMON
@given(
    text=st.text(alphabet="abc🙂é", max_size=30),
    stops=st.lists(st.text(alphabet="abc🙂é", min_size=1, max_size=4), max_size=3),
    include=st.booleans(),
    step=st.integers(1, 7),
)
@example(text="aab", stops=["ab"], include=False, step=1)
@example(text="abc", stops=["abcd", "bc"], include=False, step=2)
@example(text="xbab", stops=["bab", "b"], include=True, step=4)
def test_stops_by_definition_whatever_the_cut(
    byte_level: Tokenizer, text: str, stops: list[str], include: bool, step: int
) -> None:
    ids = letters(byte_level, text)
    deltas, processor = run(
        byte_level, ids, step=step, stop=tuple(stops), include_stop_str_in_output=include
    )
    wanted, stop = expected(text, stops, include)
    assert fold(deltas) == wanted
    last = next((d for d in deltas if d.finish_reason is not None), None)
    assert last is not None
    kept = [token for delta in deltas for token in delta.token_ids]
    assert kept == ids[: len(kept)]
    assert processor.num_tokens == len(kept)
    if stop is None:
        assert (last.finish_reason, last.stop_reason, last.stopped_by_text) == (
            "length",
            None,
            False,
        )
        assert kept == ids
        return
    assert (last.finish_reason, last.stop_reason, last.stopped_by_text) == ("stop", stop, True)
    # The token that completed the stop string is the last that counts.
    end = len((wanted if include else wanted + stop).encode())
    assert kept == ids[:end]
    after = deltas[deltas.index(last) + 1 :]
    assert all(d == TextDelta("", [], None, None, False) for d in after)


@COMMON
@given(
    text=st.text(alphabet="ab", max_size=30),
    stop=st.text(alphabet="ab", min_size=1, max_size=5),
)
def test_exactly_what_may_still_become_a_stop_string_is_held_back(
    byte_level: Tokenizer, text: str, stop: str
) -> None:
    processor = OutputProcessor(byte_level, [], SamplingParams(stop=(stop,)))
    seen = shown = ""
    for char, token in zip(text, letters(byte_level, text), strict=True):
        delta = processor.push([token], None)
        if delta.finish_reason is not None:
            return
        seen, shown = seen + char, shown + delta.text
        held = seen[len(shown) :]
        assert seen == shown + held
        prefixes = [stop[:n] for n in range(1, len(stop)) if seen.endswith(stop[:n])]
        assert held == max(prefixes, key=len, default="")


def test_what_was_held_back_comes_at_the_end(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "say EN")
    deltas, _ = run(byte_level, ids, stop=("END",))
    assert [d.text for d in deltas] == ["s", "a", "y", " ", "", "EN"]
    assert deltas[-1].finish_reason == "length"


def test_a_false_start_is_released_at_once(byte_level: Tokenizer) -> None:
    deltas, _ = run(byte_level, letters(byte_level, "ENx"), stop=("END",), finish=None)
    assert [d.text for d in deltas] == ["", "", "ENx"]


def test_an_incomplete_character_is_flushed_once_at_the_end(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "a🙂")[:-1]
    deltas, _ = run(byte_level, ids)
    assert [d.text for d in deltas] == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_an_end_tokens_own_text_is_not_part_of_the_reply(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "hi!")
    processor = OutputProcessor(byte_level, [], SamplingParams(stop_token_ids=(ids[-1],)))
    delta = processor.push(ids, "stop", ids[-1])
    assert delta == TextDelta("hi", ids, "stop", ids[-1], False)
    assert processor.num_tokens == 3


def test_an_end_token_is_shown_where_stops_are_wanted(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "hi!")
    params = SamplingParams(stop_token_ids=(ids[-1],), include_stop_str_in_output=True)
    assert OutputProcessor(byte_level, [], params).push(ids, "stop", ids[-1]).text == "hi!"


def test_special_tokens_are_hidden_or_shown(byte_level: Tokenizer) -> None:
    ids = [1, *letters(byte_level, "a"), 2]
    for skip, text in ((True, "a"), (False, "<|start|>a<|fim|>")):
        deltas, processor = run(byte_level, ids, skip_special_tokens=skip)
        assert fold(deltas) == text
        assert processor.num_tokens == 3


def test_a_stop_string_may_be_a_special_token_that_is_shown(byte_level: Tokenizer) -> None:
    ids = [*letters(byte_level, "a"), 2, *letters(byte_level, "b")]
    deltas, processor = run(byte_level, ids, stop=("<|fim|>",), skip_special_tokens=False)
    assert fold(deltas) == "a"
    assert processor.num_tokens == 2
    assert processor.is_finished


def test_a_stop_string_in_the_same_step_wins_over_the_engines_end(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "a;b")
    deltas, processor = run(byte_level, ids, stop=(";",), step=3)
    assert deltas == [TextDelta("a", ids[:2], "stop", ";", True)]
    assert processor.num_tokens == 2


def test_an_end_without_tokens(byte_level: Tokenizer) -> None:
    processor = OutputProcessor(byte_level, [], SamplingParams(stop=("ab",)))
    assert processor.push(letters(byte_level, "a"), None).text == ""
    assert processor.push([], "abort") == TextDelta("a", [], "abort", None, False)


def test_a_text_of_a_form_may_end_without_a_token_for_it(byte_level: Tokenizer) -> None:
    ids = letters(byte_level, "a.")
    for last, text in ((None, "a."), (ids[-1], "a")):
        params = SamplingParams(
            structured_outputs=StructuredOutputsParams(regex="a.?"),
            stop_token_ids=() if last is None else (last,),
        )
        processor = OutputProcessor(byte_level, [], params)
        assert processor.push(ids, "stop", last) == TextDelta(text, ids, "stop", last, False)
        processor = OutputProcessor(byte_level, [], params)
        assert processor.push(ids[:1], None).text == "a"
        assert processor.push([], "stop") == TextDelta("", [], "stop", None, False)


@COMMON
@given(
    text=st.text(alphabet="abc🙂é", max_size=30),
    stops=st.lists(st.text(alphabet="abc🙂é", min_size=1, max_size=4), max_size=2),
    step=st.integers(1, 7),
)
def test_logprobs_and_offsets_go_with_their_tokens(
    byte_level: Tokenizer, text: str, stops: list[str], step: int
) -> None:
    ids = letters(byte_level, text)
    entries = [TokenLogprobs([token], [-float(at)], 1) for at, token in enumerate(ids)]
    processor = OutputProcessor(byte_level, [], SamplingParams(stop=tuple(stops), logprobs=0))
    deltas = []
    for start in range(0, max(len(ids), 1), step):
        part = slice(start, start + step)
        finish = "length" if start + step >= len(ids) else None
        deltas.append(processor.push(ids[part], finish, None, entries[part]))
    kept = [token for delta in deltas for token in delta.token_ids]
    assert [e for delta in deltas for e in delta.logprobs or ()] == entries[: len(kept)]
    # A token begins where the character begins that its byte belongs to.
    begins = [at for at, char in enumerate(text) for _ in char.encode()]
    assert [o for delta in deltas for o in delta.text_offsets or ()] == begins[: len(kept)]


@COMMON
@given(
    data=st.lists(
        st.one_of(st.binary(min_size=1, max_size=3), st.text("aé🙂", min_size=1).map(str.encode))
    ).map(b"".join),
    step=st.integers(1, 7),
)
@example(data=b"\xf0a", step=1)
@example(data=b"\xf0\x9fa\xf0", step=2)
@example(data=b"\xed\xa0", step=1)
@example(data=b"\xe0\xed\xa0\x80", step=1)
def test_offsets_are_those_of_pythons_own_decoder_whatever_the_bytes(
    byte_level: Tokenizer, data: bytes, step: int
) -> None:
    of = {byte_level.token_bytes(i): i for i in reversed(range(3, 420))}
    ids = [of[data[i : i + 1]] for i in range(len(data))]
    entries = [TokenLogprobs([token], [0.0], 1) for token in ids]
    processor = OutputProcessor(byte_level, [], SamplingParams(logprobs=0))
    deltas = [
        processor.push(
            ids[start : start + step],
            "length" if start + step >= len(ids) else None,
            None,
            entries[start : start + step],
        )
        for start in range(0, len(ids), step)
    ]
    assert fold(deltas) == data.decode(errors="replace")
    assert [o for delta in deltas for o in delta.text_offsets or ()] == characters_of(data)


def characters_of(data: bytes) -> list[int]:
    """For each byte the number of the character that it is a part of, by Python's own decoder."""
    numbers: list[int] = []
    while len(numbers) < len(data):
        rest, num_wrong = data[len(numbers) :], 0
        try:
            right = rest.decode()
        except UnicodeDecodeError as error:
            right, num_wrong = rest[: error.start].decode(), error.end - error.start
        for char in [*(char.encode() for char in right), *[b"?" * num_wrong] * bool(num_wrong)]:
            numbers += [numbers[-1] + 1 if numbers else 0] * len(char)
    return numbers


WORDS = ["▁the", "▁cat", "s", "▁", "▁日本", "é", "!"]


@COMMON
@given(
    pieces=st.lists(
        st.one_of(st.sampled_from(WORDS), st.sampled_from("🙂ñ\u0301").map(str.encode))
    ),
    step=st.integers(1, 5),
)
def test_in_a_vocabulary_of_words_each_token_is_in_the_text_at_its_place(
    word_pieces: Tokenizer, pieces: list[str | bytes], step: int
) -> None:
    spelling = [[p] if isinstance(p, str) else [f"<0x{byte:02X}>" for byte in p] for p in pieces]
    ids = [word_pieces.backend.token_to_id(token) for each in spelling for token in each]
    entries = [TokenLogprobs([token], [0.0], 1) for token in ids]
    prompt = word_pieces.encode("the")
    processor = OutputProcessor(word_pieces, prompt, SamplingParams(logprobs=0))
    deltas = [
        processor.push(ids[at : at + step], None, None, entries[at : at + step])
        for at in range(0, len(ids), step)
    ]
    text = fold([*deltas, processor.push([], "length")])
    assert "the" + text == word_pieces.decode([*prompt, *ids])
    offsets = iter([o for delta in deltas for o in delta.text_offsets or ()])
    end = 0
    for piece, each in zip(pieces, spelling, strict=True):
        written = piece.replace("▁", " ") if isinstance(piece, str) else piece.decode()
        assert [next(offsets) for _ in each] == [end] * len(each)
        assert text.startswith(written, end)
        end += len(written)


def test_the_end_token_stands_behind_a_character_that_never_ends(byte_level: Tokenizer) -> None:
    ids = [*letters(byte_level, "a🙂")[:-1], 2]
    entries = [TokenLogprobs([token], [0.0], 1) for token in ids]
    processor = OutputProcessor(byte_level, [], SamplingParams(logprobs=0))
    delta = processor.push(ids, "stop", None, entries)
    assert delta.text == "a\N{REPLACEMENT CHARACTER}"
    assert delta.text_offsets == [0, 1, 1, 1, 2]


def test_nothing_is_said_of_logprobs_that_nobody_asked_for(byte_level: Tokenizer) -> None:
    deltas, _ = run(byte_level, letters(byte_level, "ab"))
    assert all(d.logprobs is None and d.text_offsets is None for d in deltas)


@COMMON
@given(
    text=st.text(alphabet="ab", max_size=20),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    least=st.integers(0, 12),
    step=st.integers(1, 5),
)
@example(text="abab", stops=["ab", "abab"], least=2, step=1)
@example(text="abb", stops=["ab", "abb"], least=2, step=1)
def test_no_stop_string_counts_before_there_are_min_tokens(
    byte_level: Tokenizer, text: str, stops: list[str], least: int, step: int
) -> None:
    ids = letters(byte_level, text)
    params: dict[str, Any] = {"stop": tuple(stops), "min_tokens": least, "max_tokens": 20}
    deltas, processor = run(byte_level, ids, step=step, **params)
    ends = [
        (end, stop)
        for end in range(least + 1, len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    if not ends:
        assert fold(deltas) == text
        return
    first = min(end for end, _ in ends)
    longest = max((stop for end, stop in ends if end == first), key=len)
    assert fold(deltas) == text[: first - len(longest)]
    assert processor.num_tokens == first
