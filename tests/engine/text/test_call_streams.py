"""How parsers are streamed that know whole texts alone, or that stream by themselves; forced calls;
and the splitter that joins reasoning and calls. The built-in formats have tests of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookserve.engine.text.call_streams import CallStream, open_calls
from hookserve.engine.text.forced_calls import MAX_CALLS, ListedCalls, NamedCall, form_of
from hookserve.engine.text.json_end import json_end
from hookserve.engine.text.reasoning_parser import MarkedReasoningParser, ReasoningParser
from hookserve.engine.text.reasoning_streams import open_reasoning
from hookserve.engine.text.reply_splitter import ReasoningTokens, ReplySplitter
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.engine.text.tool_calls import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    FunctionDefinition,
    ParserRequest,
    Tool,
    ToolCall,
    fold_calls,
)
from hookserve.engine.text.tool_parser import ToolParser

CALL = re.compile(r"CALL (\w+);")


class Unmarked(ToolParser):
    """Knows whole texts alone, and says of no text that it is content."""

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        calls = [ToolCall(FunctionCall(name, "{}")) for name in CALL.findall(model_output)]
        content = CALL.sub("", model_output)
        return ExtractedToolCallInformation(bool(calls), calls, content or None)


class Marked(Unmarked):
    start_markers = ("CALL ",)


class Streaming(Marked):
    """Its own streaming says the name in capitals, so that a test sees who was asked."""

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        assert current_text == previous_text + delta_text
        assert [*previous_token_ids, *delta_token_ids] == current_token_ids
        if delta_text != ";":
            return None
        self.prev_tool_call_arr = [{"name": "f", "arguments": {"n": 1}}]
        self.streamed_args_for_tool = ['{"n"']
        return DeltaMessage(tool_calls=[DeltaToolCall.begin(0, "id", "OWN", '{"n"')])


def run(stream: CallStream, pieces: Sequence[str]) -> list[DeltaMessage]:
    said = [stream.push(piece, [ord(char) for char in piece]) for piece in pieces]
    return [*said, stream.end()]


def folded(said: Sequence[DeltaMessage]) -> tuple[list[tuple[str, str]], str | None]:
    message = DeltaMessage()
    for each in said:
        message.add(each)
    calls = fold_calls(message.tool_calls)
    return [(each.function.name, each.function.arguments) for each in calls], message.content


def make(parser: type[ToolParser]) -> CallStream:
    return open_calls(parser(None), ParserRequest())  # type: ignore[arg-type]


def test_without_markers_all_waits_for_the_end() -> None:
    said = run(make(Unmarked), ["a ", "CALL f;", " b"])
    assert [bool(each) for each in said] == [False, False, False, True]
    assert folded(said) == ([("f", "{}")], "a  b")


def test_what_is_before_a_marker_is_streamed_and_its_beginning_is_not() -> None:
    said = run(make(Marked), ["one CA", "T two C", "ALL f", "; three"])
    assert [each.content or "" for each in said] == ["one", " CAT two", "", "", "  three"]
    assert folded(said) == ([("f", "{}")], "one CAT two  three")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["CALL ", "f;", "C", "A", " ", "x", ";"]), max_size=12))
def test_a_whole_parser_streams_what_it_says_of_the_whole(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = Marked(None).extract_tool_calls(text, ParserRequest())  # type: ignore[arg-type]
    calls = [(each.function.name, each.function.arguments) for each in whole.tool_calls]
    assert folded(run(make(Marked), pieces)) == (calls, whole.content)
    assert folded(run(make(Marked), list(text))) == (calls, whole.content)


def test_a_streaming_method_of_its_own_is_used_with_what_it_left_open() -> None:
    assert folded(run(make(Streaming), ["CALL f", ";", "x"])) == ([("OWN", '{"n": 1}')], None)


def test_a_call_has_one_id_whatever_its_parser_gives() -> None:
    parts = iter(
        [
            DeltaToolCall(0, function=DeltaFunctionCall("f")),
            DeltaToolCall(0, "again", function=DeltaFunctionCall(arguments="{}")),
            DeltaToolCall(1, "mine", "function", DeltaFunctionCall("g", "{")),
            DeltaToolCall(1, "mine", function=DeltaFunctionCall(arguments="}")),
        ]
    )

    class Careless(Streaming):
        def extract_tool_calls_streaming(self, *args: Any) -> DeltaMessage | None:
            return DeltaMessage(tool_calls=[next(parts)])

    stream = make(Careless)
    said = [stream.push(piece, ()).tool_calls[0] for piece in "abcd"]
    assert [each.id and each.id[:5] for each in said] == ["call_", None, "mine", None]
    calls = fold_calls(said)
    assert [(call.id[:5], call.function.name, call.function.arguments) for call in calls] == [
        ("call_", "f", "{}"),
        ("mine", "g", "{}"),
    ]


def test_a_parser_can_be_stepped_through_by_anybody() -> None:
    parser = Marked(None)  # type: ignore[arg-type]
    said, text = [], ""
    for piece in ("so ", "it is. ", "CALL f;"):
        said.append(
            parser.extract_tool_calls_streaming(
                text, text + piece, piece, [], [], [], ParserRequest()
            )
        )
        text += piece
    assert [each and each.content for each in said] == ["so", " it is.", None]


# -- forced calls --------------------------------------------------------------------------------

LISTED = '[{"name":"f","parameters":{"s":"}]\\""}}, {"name":"g","parameters":{}}]'
CALLS = [("f", '{"s":"}]\\""}'), ("g", "{}")]


def test_listed_calls_are_read_however_their_text_is_cut() -> None:
    for at in range(len(LISTED)):
        assert folded(run(ListedCalls(), [LISTED[:at], LISTED[at:]])) == (CALLS, None)
    said = run(ListedCalls(), list(LISTED))
    assert folded(said) == (CALLS, None)
    parts = [part for each in said for part in each.tool_calls]
    assert [part.function and part.function.arguments for part in parts[:2]] == ["", "{"]
    assert parts[0].id is not None and parts[1].id is None


@pytest.mark.parametrize(
    ("end", "calls", "content"),
    [(1, [], "["), (12, [], '[{"name":"f"'), (31, [("f", '{"s":')], None), (47, CALLS[:1], None)],
)
def test_of_a_list_that_is_cut_short_there_is_what_came(
    end: int, calls: list[Any], content: str | None
) -> None:
    text = LISTED[:end]
    for pieces in ([text], list(text)):
        assert folded(run(ListedCalls(), pieces)) == (calls, content)


def test_a_named_call_is_all_of_the_text() -> None:
    assert folded(run(NamedCall("f"), ['{"a', '":1}'])) == ([("f", '{"a":1}')], None)
    assert folded(run(NamedCall("f"), [])) == ([], None)


def test_references_in_a_schema_are_still_its_own_beside_others() -> None:
    tree = {
        "type": "object",
        "properties": {
            "left": {"$ref": "#"},
            "item": {"$ref": "#/$defs/item"},
            "$ref": {"const": {"$ref": "#"}},
            "default": {"$ref": "#/$defs/item"},
        },
        "default": {"$ref": "#"},
        "$defs": {"item": {"enum": ["#"]}},
    }
    tools = [
        Tool("function", FunctionDefinition("f", parameters=tree, strict=True)),
        Tool("function", FunctionDefinition("g", strict=True)),
    ]
    form = form_of(tools, None)
    assert isinstance(form.json, dict)
    moved = form.json["$defs"]["0"]
    assert moved["properties"]["left"] == {"$ref": "#/$defs/0"}
    assert moved["properties"]["item"] == {"$ref": "#/$defs/0/$defs/item"}
    assert moved["properties"]["$ref"] == {"const": {"$ref": "#"}}
    assert moved["properties"]["default"] == moved["properties"]["item"], "a name is no keyword"
    assert moved["default"] == {"$ref": "#"}
    assert (form.json["minItems"], form.json["maxItems"]) == (1, MAX_CALLS)
    assert (form.lenient, form.disable_any_whitespace) == (False, True)
    assert form_of(tools, "f").json == tree
    assert form_of([*tools, Tool("function", FunctionDefinition("h"))], None).lenient


def test_a_schema_with_an_id_refers_to_itself_by_it_or_without_it() -> None:
    own = "https://schemas.example/pair"
    inner = {"$id": "inner", "$defs": {"x": {"const": 1}}, "$ref": "#/$defs/x"}
    pair = {
        "$id": own,
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": f"{own}#/$defs/x"}, "c": inner},
        "items": {"$ref": own},
        "$defs": {"x": {"const": 2}},
    }
    form = form_of([Tool("function", FunctionDefinition("f", parameters=pair))], None)
    assert isinstance(form.json, dict)
    moved = form.json["$defs"]["0"]
    here = {"$ref": "#/$defs/0/$defs/x"}
    assert moved["properties"] == {"a": here, "b": here, "c": inner}
    assert moved["items"] == {"$ref": "#/$defs/0"}
    assert "$id" not in moved


@pytest.mark.parametrize(
    ("text", "end"),
    [('{"a":"}\\""}x', 11), ("[[1],{}]", 8), ('{"a":[', None), ('{"a\\', None), ('"a"', "bad")],
)
def test_the_end_of_json_is_found(text: str, end: Any) -> None:
    if end == "bad":
        with pytest.raises(ValueError, match="no JSON"):
            json_end(text, 0)
    else:
        assert json_end(text, 0) == end


# -- reasoning, and both together ----------------------------------------------------------------


class Plan(ReasoningParser):
    """Knows whole texts alone."""

    reasoning_end_str = "</plan>"

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        reasoning, marker, content = model_output.partition("</plan>")
        return (reasoning, content or None) if marker else (None, model_output or None)


class Unplanned(Plan):
    reasoning_end_str = None


@pytest.mark.parametrize(("parser", "is_early"), [(Plan, True), (Unplanned, False)])
def test_a_whole_reasoning_parser_streams_what_it_says_of_the_whole(
    parser: type[ReasoningParser], is_early: bool
) -> None:
    for text in ("a</plan>b c", "a b", ""):
        for pieces in ([text], list(text)):
            said = run(open_reasoning(parser(None), ParserRequest()), pieces)  # type: ignore[arg-type]
            message = DeltaMessage()
            for each in said:
                message.add(each)
            found = parser(None).extract_reasoning(text, ParserRequest())  # type: ignore[arg-type]
            assert (message.reasoning, message.content) == found
            if "<" in text and len(pieces) > 1:
                assert any(said[:-1]) == is_early


def test_reasoning_tokens_are_those_up_to_its_end(byte_level: Tokenizer) -> None:
    parser = MarkedReasoningParser(byte_level)
    texts = {"<think>": 0, "<think>aé</think>b": 9, "aé": 2, "</think>b": 0}
    for text, num_chars in texts.items():
        ids = byte_level.encode(text, add_special_tokens=False)
        count = parser.count_reasoning_tokens(ids)
        assert len(byte_level.decode(ids[:count])) >= num_chars
        assert count == 0 or len(byte_level.decode(ids[: count - 1])) < num_chars
    ids = byte_level.encode("<think>a</think>bc", add_special_tokens=False)
    assert byte_level.decode(parser.extract_content_ids(ids)) == "bc"
    unmarked = type("Unmarked", (MarkedReasoningParser,), {"reasoning_end_str": None})
    assert unmarked(byte_level).extract_content_ids(ids) == []
    ended = byte_level.encode("x<think>\n\n</think>\n\n", add_special_tokens=False)
    assert parser.is_reasoning_end(ended)
    assert not parser.is_reasoning_end(ids)


def test_the_splitter_looks_for_calls_behind_the_reasoning_alone() -> None:
    def split(pieces: list[str], **options: Any) -> tuple[DeltaMessage, ReplySplitter]:
        reasoning = open_reasoning(MarkedReasoningParser(None), ParserRequest())  # type: ignore[arg-type]
        tokens = ReasoningTokens(count=len, content=lambda ids: ids)
        splitter = ReplySplitter(reasoning, make(Marked), tokens=tokens, **options)
        message = DeltaMessage()
        for at, piece in enumerate(pieces):
            message.add(splitter.push(piece, [at], at == len(pieces) - 1))
        return message, splitter

    text = "<think>CALL f;</think>so CALL g;CALL h;"
    for pieces in ([text], list(text)):
        message, splitter = split(pieces)
        calls = [call.function.name for call in fold_calls(message.tool_calls)]
        assert (message.reasoning, message.content) == ("CALL f;", "so ")
        assert (calls, splitter.num_calls) == (["g", "h"], 2)
        message, splitter = split(pieces, shows_reasoning=False, max_calls=1)
        assert (message.reasoning, splitter.num_calls) == (None, 1)
    assert split(list(text))[1].num_reasoning_tokens == text.index("so") + 1


def test_a_parser_sees_tokens_whose_text_comes_later() -> None:
    class Watching(Streaming):
        def extract_tool_calls_streaming(self, *args: Any) -> DeltaMessage | None:
            seen.append((args[2], args[5]))
            return None

    steps = [("", [1]), ("a", [2]), ("", [3]), ("", [4])]
    for begin in (None, "<think>x</think>b"):
        seen: list[tuple[str, list[int]]] = []
        reasoning = open_reasoning(MarkedReasoningParser(None), ParserRequest())  # type: ignore[arg-type]
        splitter = ReplySplitter(reasoning if begin else None, make(Watching))
        if begin is not None:
            splitter.push("<think>y", [0], False)
            splitter.push(begin.removeprefix("<think>"), [0], False)
        for at, (text, token_ids) in enumerate(steps):
            splitter.push(text, token_ids, at == len(steps) - 1)
        assert seen == ([("b", [0])] if begin else []) + steps


def test_calls_are_looked_for_with_the_tokens_behind_the_reasoning() -> None:
    """Token 9 ends the reasoning, also where its text comes a step later."""

    class Marked9(ReasoningParser):
        def extract_reasoning(self, model_output: str, request: Any) -> tuple[str, str]:
            return "", model_output

        def extract_reasoning_streaming(self, *args: Any) -> DeltaMessage | None:
            before, _, text = args[:3]
            return DeltaMessage(text) if "|" in before else DeltaMessage(reasoning=text)

    class Watching(Streaming):
        def extract_tool_calls_streaming(self, *args: Any) -> DeltaMessage | None:
            seen.append((args[2], args[5]))
            return DeltaMessage(args[2])

    def run_with(has_ended: Any) -> ReplySplitter:
        tokens = ReasoningTokens(
            count=lambda ids: ids.index(9),
            content=lambda ids: ids[ids.index(9) + 1 :] if 9 in ids else [],
            has_ended=has_ended,
        )
        reasoning = open_reasoning(Marked9(None), ParserRequest())  # type: ignore[arg-type]
        splitter = ReplySplitter(reasoning, make(Watching), tokens=tokens)
        for at, (text, ids) in enumerate([("a", [1, 2]), ("", [9, 3]), ("|", []), ("b", [4])]):
            splitter.push(text, ids, at == 3)
        return splitter

    seen: list[tuple[str, list[int]]] = []
    assert run_with(None).num_reasoning_tokens == 2
    assert seen == [("b", [3, 4])]
    seen = []
    assert run_with(lambda ids, delta: 9 in delta).num_reasoning_tokens == 2
    assert seen == [("", [3]), ("b", [4])], "who goes by tokens is asked at once"
