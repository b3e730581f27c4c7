"""The built-in grammars, token by token: what they let through, how they end, what is refused."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from hookserve.hookspecs.grammar_types import GrammarSpec, GrammarVocabulary
from hookserve.plugins_builtin.llguidance_backend import LLGuidanceBackend

WORDS = [b"red", b"true", b"false", b'{"', b'":', b" ", b"  ", b"\n", b'"a"', b"ed", b"r"]
TOKENS = [bytes([byte]) for byte in range(256)] + WORDS
SPECIAL = [len(TOKENS), len(TOKENS) + 1]
VOCABULARY = [*TOKENS, b"", b""]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["red", "größe"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def encode(text: str) -> list[int]:
    """As a tokenizer that puts a space in front of every text: not the text's own bytes."""
    return [ord(" "), *text.encode()]


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(GrammarVocabulary(VOCABULARY, encode))


def allowed(matcher: Any) -> list[int]:
    mask = np.zeros(-(-len(VOCABULARY) // 32), dtype=np.int32)
    matcher.fill_mask(mask)
    return np.unpackbits(mask.view(np.uint8), bitorder="little").nonzero()[0].tolist()


def say(backend: LLGuidanceBackend, spec: GrammarSpec, seed: int = 0, most: int = 400) -> str:
    """A random text, to its end."""
    LLGuidanceBackend.validate(spec)
    matcher = backend.compile(spec).matcher()
    generator, text = random.Random(seed), b""
    for _ in range(most):
        if matcher.is_finished():
            assert matcher.can_end()
            return text.decode()
        token_ids = allowed(matcher)
        assert token_ids and max(token_ids) < SPECIAL[0], "no text has a special token"
        token_id = generator.choice(token_ids)
        assert matcher.accept(token_id)
        text += VOCABULARY[token_id]
    assert matcher.can_end(), text
    return text.decode()


# -- what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_json_fits_its_schema_and_white_space_has_an_end(
    backend: LLGuidanceBackend, seed: int
) -> None:
    free = say(backend, GrammarSpec("json", json.dumps(SCHEMA)), seed)
    jsonschema.validate(json.loads(free), SCHEMA)
    assert max(map(len, re.findall(r"\s+", free)), default=0) <= 33, "32 and the word's own"
    tight = say(backend, GrammarSpec("json", json.dumps(SCHEMA), any_whitespace=False), seed)
    assert tight == json.dumps(json.loads(tight), ensure_ascii="\\" in tight).replace(": ", ":") \
        .replace(", ", ",")  # fmt: skip
    spec = GrammarSpec("json", json.dumps(SCHEMA), whitespace_pattern="\n?")
    lines = say(backend, spec, seed)
    jsonschema.validate(json.loads(lines), SCHEMA)
    assert " " not in lines and "\n\n" not in lines


def test_a_model_that_likes_white_space_comes_to_the_point(backend: LLGuidanceBackend) -> None:
    matcher = backend.compile(GrammarSpec("json_object", '{"type": "object"}')).matcher()
    assert matcher.accept(ord("{"))
    taken = 0
    while ord(" ") in allowed(matcher):
        assert matcher.accept(ord(" "))
        taken += 1
    assert taken == 32


@pytest.mark.parametrize("pattern", ["[a-c]{3}", "^[a-c]{3}$", r"[0-9]{3}-[0-9]{4}", "(re|bl)ue*"])
def test_a_text_matches_the_whole_expression(backend: LLGuidanceBackend, pattern: str) -> None:
    for seed in range(3):
        assert re.fullmatch(pattern, say(backend, GrammarSpec("regex", pattern), seed, most=12))


def test_a_text_is_one_of_the_choices(backend: LLGuidanceBackend) -> None:
    choices = ['say "x"', "größe\n日本", "red", "reddish"]
    spec = GrammarSpec("choice", json.dumps(choices))
    matcher = backend.compile(spec).matcher()
    for char in b"red":
        assert not matcher.can_end()
        assert matcher.accept(char)
    assert matcher.can_end() and not matcher.is_finished()
    assert {say(backend, spec, seed) for seed in range(20)} >= {'say "x"', "größe\n日本"}


@pytest.mark.parametrize("text", ['root ::= "a" ("b" | "c")+ "."', 'start: "a" ("b" | "c")+ "."'])
def test_grammars_may_be_gbnf_or_lark(backend: LLGuidanceBackend, text: str) -> None:
    assert re.fullmatch(r"a[bc]+\.", say(backend, GrammarSpec("grammar", text), 3))


def test_what_is_forced_comes_in_the_models_own_tokens(backend: LLGuidanceBackend) -> None:
    """A grammar that leaves one text asks the tokenizer how that is divided; where its answer has
    other bytes, the longest token comes first."""
    spec = GrammarSpec("choice", '["red"]')
    assert allowed(backend.compile(spec).matcher()) == [TOKENS.index(b"red")]
    plain = LLGuidanceBackend(GrammarVocabulary(VOCABULARY, lambda text: [*text.encode()]))
    assert allowed(plain.compile(spec).matcher()) == [ord("r")]


def test_matchers_of_one_grammar_know_nothing_of_one_another(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(GrammarSpec("regex", "ab|cd"))
    first, second = grammar.matcher(), grammar.matcher()
    assert first.accept(ord("a"))
    assert allowed(first) == [ord("b")]
    assert allowed(second) == [ord("a"), ord("c")]
    assert not second.accept(ord("d"))


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", '{"type": "foo"}', "Invalid type: foo"),
        ("json", '{"$ref": "#"}', "no text can match it"),
        ("json", '{"$ref": "http://example.org/x.json"}', "example.org"),
        ("json", '{"type": "string", "pattern": "(["}', "unclosed character class"),
        ("json", '{"type": "string", "format": "foo"}', "Unknown format: foo"),
        ("json", '{"uniqueItems": true}', 'Unimplemented keys: ["uniqueItems"]'),
        ("json", '{"type": "integer", "minimum": 5, "maximum": 2}', "Unsatisfiable schema"),
        ("regex", "([", "unclosed character class"),
        ("regex", "(" * 4_000 + "a" + ")" * 4_000, "invalid regex"),
        ("grammar", "root ::= root", "no text can match it"),
        ("grammar", "start: start", "no text can match it"),
        ("grammar", "bogus !!", "Failed to convert the grammar from GBNF to Lark"),
        ("grammar", "root ::= " + '"a" ' * 5_000, "the grammar has 20009 bytes; 16384 are the"),
        ("grammar", "start: " + '"a" ' * 9_000, "the grammar has 36007 bytes; 32768 are the"),
        ("grammar", "start: a\n" + 'a: "b"\n' * 400, "the grammar has 401 rules; 400 are the"),
        ("grammar", "root ::= a " + 'a ::= "b" ' * 400, "the grammar has 401 rules; 400 are the"),
        ("grammar", "start: " + "(" * 9_000 + '"a"' + ")" * 9_000, "too deeply nested"),
    ],
)
def test_what_is_no_grammar_is_said_in_one_line(kind: str, text: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        LLGuidanceBackend.validate(GrammarSpec(kind, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keywords_are_passed_over_where_that_is_wanted(backend: LLGuidanceBackend) -> None:
    text = json.dumps({"type": "array", "items": {"const": 1}, "uniqueItems": True, "maxItems": 3})
    LLGuidanceBackend.validate(GrammarSpec("json", text, lenient=True))
    assert json.loads(say(backend, GrammarSpec("json", text, lenient=True))) in ([], [1], [1] * 2,
                                                                              [1] * 3)  # fmt: skip


def test_references_that_follow_one_another_in_their_thousands_find_room(
    backend: LLGuidanceBackend,
) -> None:
    """Without room on the stack this ends the process."""
    defs = {str(at): {"allOf": [{"$ref": f"#/$defs/{at + 1}"}]} for at in range(2_500)}
    schema = {"$ref": "#/$defs/0", "$defs": {**defs, "2500": {"const": 1}}}
    assert say(backend, GrammarSpec("json", json.dumps(schema))) == "1"


def test_what_is_beyond_the_limits_of_a_step_is_refused_where_it_is_forced() -> None:
    """All of an object's first properties are looked at behind the brace, which must come."""
    properties = {f"p{at}": {"type": "string"} for at in range(700)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    with pytest.raises(ValueError, match="max is 2000"):
        LLGuidanceBackend.validate(GrammarSpec("json", json.dumps(schema)))


def test_a_token_whose_choices_take_too_long_to_find_is_the_last(
    backend: LLGuidanceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    matcher = backend.compile(GrammarSpec("regex", "[a-z]+")).matcher()
    assert allowed(matcher)
    assert matcher.accept(ord("a"))
    clock = itertools.count(0.0, 0.2)
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    with pytest.raises(ValueError, match="one token take 200 ms to find; 100 ms are the limit"):
        allowed(matcher)
