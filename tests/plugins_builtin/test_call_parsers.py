"""The built-in parsers of tool calls and of reasoning: what each format says, that malformed text
is content, and that the result is the same for every cut of the text."""

from __future__ import annotations

import ast
import itertools
import json
import threading
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookserve.engine.text.call_streams import open_calls
from hookserve.engine.text.reasoning_parser import ReasoningParser
from hookserve.engine.text.reasoning_streams import open_reasoning
from hookserve.engine.text.tool_calls import (
    DeltaMessage,
    FunctionDefinition,
    ParserRequest,
    Tool,
    fold_calls,
)
from hookserve.engine.text.tool_parser import ToolParser
from hookserve.hookspecs.targets import import_target
from hookserve.plugins_builtin import parsers

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    each.name: import_target(each.target) for each in parsers.tool_parser()
}
REASONING_PARSERS: dict[str, type[ReasoningParser]] = {
    each.name: import_target(each.target) for each in parsers.reasoning_parser()
}
TYPES = {
    "n": {"type": "integer"},
    "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    "b": {"type": ["boolean", "string"]},
    "s": {"type": "string"},
    "o": {"type": "object"},
    "l": {"type": "array"},
}
TOOLS = [
    Tool("function", FunctionDefinition("f", parameters={"type": "object", "properties": TYPES})),
    Tool("function", FunctionDefinition("g.h")),
]


def make_request() -> ParserRequest:
    return ParserRequest(tools=TOOLS, tool_choice="auto")


Found = tuple[list[tuple[str, Any]], str | None]
"""Calls, each with the value of its arguments, and content."""


def whole(name: str, text: str) -> Found:
    found = TOOL_PARSERS[name](None, TOOLS).extract_tool_calls(text, make_request())  # type: ignore[arg-type]
    calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
    assert found.tools_called == bool(calls)
    assert len({call.id for call in found.tool_calls}) == len(calls)
    return calls, found.content


def streamed(name: str, pieces: list[str]) -> Found:
    stream = open_calls(TOOL_PARSERS[name](None, TOOLS), make_request())  # type: ignore[arg-type]
    message = DeltaMessage()
    for piece in pieces:
        message.add(stream.push(piece, ()))
    message.add(stream.end())
    calls = fold_calls(message.tool_calls)
    assert [call.index for call in message.tool_calls] == list(range(len(calls)))
    return [(call.function.name, call.function.arguments) for call in calls], message.content


def every_cut(text: str) -> list[list[str]]:
    """Character by character, in three, and in two at every place."""
    third = max(1, len(text) // 3)
    twos = [[text[:at], text[at:]] for at in range(len(text) + 1)]
    return [list(text), [text[:third], text[third : 2 * third], text[2 * third :]], *twos]


NESTED = '{"a":"}\\n</tool","b":[1,{}]}'
CALLS: list[tuple[str, str, list[tuple[str, str]], str | None]] = [
    ("hermes", "hello", [], "hello"),
    (
        "hermes",
        f'pre<tool_call>{{"name":"f","arguments":{NESTED}}}</tool_call>' * 2,
        [("f", NESTED)] * 2,
        "prepre",
    ),
    (
        "hermes",
        '\n<tool_call>\n{"name": "f", "arguments": {"n": 1.0}}\n</tool_call>\n\n'
        '<tool_call>\n{"arguments": null, "name": "f"}\n</tool_call> and',
        [("f", '{"n": 1.0}')],
        '\n\n<tool_call>\n{"arguments": null, "name": "f"}\n</tool_call> and',
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [("f", "{}")], None),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"n\\":1}"} so',
        [("f", '{"n":1}')],
        " so",
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_c',
        [("f", '{"s": "a\\nb"}')],
        None,
    ),
    ("llama3_json", '{"name": "f", "parameters": {"n": 1}}', [("f", '{"n": 1}')], None),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "arguments": {}}; {"name": "g.h", "parameters": {}};\n',
        [("f", "{}"), ("g.h", "{}")],
        None,
    ),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}} done',
        [("f", "{}")],
        " done",
    ),
    (
        "pythonic",
        " [f(n=-1, s=\"a\\\"]\\n\", l=(1, [True, None]), o={'k': 'é'}), g.h()] ",
        [
            ("f", '{"n": -1, "s": "a\\"]\\n", "l": [1, [true, null]], "o": {"k": "é"}}'),
            ("g.h", "{}"),
        ],
        None,
    ),
    (
        "pythonic",
        "<|python_start|>[f(s='''it's''')]<|python_end|>",
        [("f", '{"s": "it\'s"}')],
        None,
    ),
    ("pythonic", "x <|python_start|>[f(s='')]!", [("f", '{"s": ""}')], "x !"),
    (
        "mistral",
        'so [TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}, {"name": "g.h", "arguments": {}}]',
        [("f", '{"n": 1}'), ("g.h", "{}")],
        "so ",
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]g.h{}[TOOL_CALLS]f[CALL_ID]a1[ARGS] {"n":2}',
        [("f", '{"n": 1}'), ("g.h", "{}"), ("f", '{"n":2}')],
        None,
    ),
    (
        "qwen3_coder",
        "ok\n<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n 5 "
        "</parameter> \n</parameter>\n<parameter=x>None</parameter><parameter=b>True</parameter>\n"
        '<parameter=o>\n{"a": [1]}\n</parameter>\n<parameter=l>no list</parameter>'
        "<parameter=z>1</parameter></function>\n</tool_call>\n",
        [
            (
                "f",
                '{"n": 3, "s": " 5 </parameter> ", "x": null, "b": true, "o": {"a": [1]}, '
                '"l": "no list", "z": "1"}',
            )
        ],
        "ok\n",
    ),
    (
        "qwen3_coder",
        "<function=g.h></function><tool_call><function=g.h>\n</function></too",
        [("g.h", "{}"), ("g.h", "{}")],
        None,
    ),
]


@pytest.mark.parametrize(("name", "text", "calls", "content"), CALLS)
def test_a_format_is_read_however_its_text_is_cut(
    name: str, text: str, calls: list[tuple[str, str]], content: str | None
) -> None:
    assert whole(name, text) == (calls, content)
    for call in calls:
        assert isinstance(json.loads(call[1]), dict)
    for pieces in every_cut(text):
        assert streamed(name, pieces) == (calls, content), pieces


MALFORMED = {
    "hermes": [
        '<tool_call>{"name": "f", "arguments": {"n": }}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"n": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"n": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"n": 1',
        "<tool_call>f()</tool_call>",
        "<tool_call>",
        "<tool_call>" * 100,
        "<tool_",
        "<tool_call>" + "[" * 1000,
        '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 1100 + "1" + "}" * 1101,
    ],
    "llama3_json": [
        '{"name": "f"}',
        '{"name": "unknown", "parameters": {}}',
        '{"answer": 42}',
        '{"name": "f", "parameters": {}',
        'so {"name": "f", "parameters": {}}',
        "<|python_tag|>print(1)",
        "{",
    ],
    "pythonic": [
        "[1, 2]",
        "[]",
        "[f(1)]",
        "[f(**{})]",
        "[f(s=g)]",
        "[f(n=1j)]",
        "[f(n=1e999)]",
        '[f(s="\\ud800")]',
        "[f(s=b'')]",
        "[f(o={1: 2})]",
        "[unknown()]",
        "[f(n=1)",
        "[f(n=1]",
        "[f(), 3]",
        "[" * 400 + "]" * 400,
        "f(n=1)",
        "[f(s='",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        '[TOOL_CALLS][{"name": "f"}, 3]',
        '[TOOL_CALLS]f {"n": 1',
        "[TOOL_CALLS]f is a name!",
        "[TOOL_CALLS]f{n: 1}",
        '[{"name": "f", "arguments": {}}]',
    ],
    "qwen3_coder": [
        "<tool_call><function=f><parameter=n>1</parameter>",
        "<tool_call><function=f><parameter=n>1</function></tool_call>",
        "<function=f>text</function>",
        "<function=>",
        "<tool_call>f</tool_call>",
        "<function",
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in MALFORMED.items() for text in texts]
)
def test_malformed_text_is_content_as_it_stands(name: str, text: str) -> None:
    assert whole(name, text) == ([], text)
    for pieces in every_cut(text)[:40]:
        assert streamed(name, pieces) == ([], text), pieces[:20]


def test_a_call_behind_a_malformed_one_is_found() -> None:
    bad, good = '<tool_call>{"name": f}</tool_call>', '<tool_call>{"name": "f"}</tool_call>'
    assert whole("hermes", bad + good) == ([("f", "{}")], bad)


FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name":"f","arguments":{', '"n":1', "}}", "}"],
    "llama3_json": ["<|python_tag|>", '{"name":"f","parameters":{', '"s":"}"', "}}", ";", "}"],
    "pythonic": ["<|python_start|>", "<|python_end|>", "[f(", "s='", "'", ")]", "n=1", ",", '"'],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "f", '[{"name":"f","arguments":', "{}", "}]", "}", "["],
    "qwen3_coder": [
        *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=n>"),
        *("</parameter>", "1", "\n<"),
    ],
}
NOISE = st.sampled_from([" ", "\n", "x", "é🙂", "<", "{", '"', "\\", "[", "</think>", "\u2028"])


@st.composite
def cut_texts(draw: st.DrawFn, fragments: list[str]) -> tuple[str, list[str]]:
    """A text that is nearly of the format, and some cut of it."""
    pieces = draw(st.lists(st.one_of(st.sampled_from(fragments), NOISE), max_size=14))
    text = "".join(pieces)
    places = draw(st.lists(st.integers(0, len(text)), max_size=6))
    edges = [0, *sorted(places), len(text)]
    return text, [text[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", FRAGMENTS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_text_is_read_alike_for_every_cut_and_never_lost(name: str, data: Any) -> None:
    text, pieces = data.draw(cut_texts(FRAGMENTS[name]))
    calls, content = whole(name, text)
    assert streamed(name, pieces) == (calls, content)
    assert streamed(name, list(text)) == (calls, content)
    if not calls:
        assert (content or "") == text
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


class Special:
    """A tokenizer of which some texts are special tokens."""

    def __init__(self, *texts: str) -> None:
        self.is_special = texts.__contains__


@pytest.mark.parametrize(
    ("parser", "marker"),
    [
        (TOOL_PARSERS["mistral"], "[TOOL_CALLS]"),
        (TOOL_PARSERS["llama3_json"], "<|python_tag|>"),
        (REASONING_PARSERS["qwen3"], "</think>"),
    ],
)
def test_markers_that_are_special_tokens_are_not_hidden(parser: Any, marker: str) -> None:
    for texts, is_hidden in ((["<s>"], True), (["<s>", marker], False)):
        request = parser(Special(*texts)).adjust_request(make_request())
        assert request.skip_special_tokens == is_hidden


def test_ids_are_the_formats() -> None:
    mistral = TOOL_PARSERS["mistral"](None)  # type: ignore[arg-type]
    made = mistral.make_id()
    assert (len(made), made.isalnum(), made.isascii()) == (9, True, True)
    assert TOOL_PARSERS["hermes"](None).make_id().startswith("call_")  # type: ignore[arg-type]


def test_a_long_call_is_read_as_often_as_it_doubles_or_so(monkeypatch: Any) -> None:
    """Whatever it is made of, the cost stays that of its length."""
    value = "}" * 2**15
    text = f'<tool_call>{{"name":"f","arguments":{{"s":"{value}"}}}}</tool_call>'
    num_chars = 0
    read = TOOL_PARSERS["hermes"].read_calls  # type: ignore[attr-defined]

    def counting(self: Any, text: str, *rest: Any) -> Any:
        nonlocal num_chars
        num_chars += len(text)
        return read(self, text, *rest)

    monkeypatch.setattr(TOOL_PARSERS["hermes"], "read_calls", counting)
    calls, content = streamed("hermes", [text[at : at + 4] for at in range(0, len(text), 4)])
    assert (len(calls[0][1]), content) == (len(value) + 8, None)
    assert num_chars < 30 * len(text)


# -- reasoning -----------------------------------------------------------------------------------

THOUGHTS: list[tuple[str, str, dict[str, Any], str | None, str | None]] = [
    ("deepseek_r1", "<think>a</think>b", {}, "a", "b"),
    ("deepseek_r1", "a\n</think>\n\nb</think>", {}, "a\n", "\n\nb</think>"),
    ("deepseek_r1", "\n<think>a <think></thin", {}, "a <think></thin", None),
    ("deepseek_r1", "no markers", {}, "no markers", None),
    ("deepseek_r1", "</think>b", {}, None, "b"),
    ("deepseek_r1", "<think", {}, "<think", None),
    ("qwen3", "<think>\n\n</think>\n\nb", {}, "\n\n", "\n\nb"),
    ("qwen3", "<think>a</think>b", {"enable_thinking": False}, None, "<think>a</think>b"),
    ("qwen3", "a</think>b", {"enable_thinking": True}, "a", "b"),
]


@pytest.mark.parametrize(("name", "text", "options", "reasoning", "content"), THOUGHTS)
def test_reasoning_is_parted_however_its_text_is_cut(
    name: str, text: str, options: dict[str, Any], reasoning: str | None, content: str | None
) -> None:
    make = REASONING_PARSERS[name]
    parser = make(None, chat_template_kwargs=options)  # type: ignore[arg-type]
    found = parser.extract_reasoning(text, ParserRequest())
    assert found == (reasoning, content)
    for pieces in every_cut(text):
        parser = make(None, chat_template_kwargs=options)  # type: ignore[arg-type]
        stream = open_reasoning(parser, ParserRequest())
        message = DeltaMessage()
        for piece in pieces:
            message.add(stream.push(piece, ()))
        message.add(stream.end())
        assert (message.reasoning, message.content) == (reasoning, content), pieces


HALF = '{"s": "\\ud83d"}'
"""An escape that is half a character: no text that can be sent."""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {HALF}}}</tool_call>'),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {json.dumps(HALF)}}}</tool_call>'),
        ("llama3_json", f'{{"name": "f", "parameters": {HALF}}}'),
        ("mistral", f'[TOOL_CALLS][{{"name": "f", "arguments": {HALF}}}]'),
        ("mistral", f"[TOOL_CALLS]f{HALF}"),
        ("pythonic", '[f(s="\\ud83d")]'),
    ],
)
def test_half_a_character_makes_no_call(name: str, text: str) -> None:
    assert whole(name, text) == streamed(name, list(text)) == ([], text)


def test_texts_that_are_read_in_two_threads_leave_the_warnings_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, before = ast.parse, list(warnings.filters)
    has_begun, other_has_begun = threading.Event(), threading.Event()

    def parse(*args: Any, **options: Any) -> Any:
        """Have the one that comes first leave first, if the other comes while it is there."""
        if threading.current_thread() is first:
            has_begun.set()
            other_has_begun.wait(0.2)
        else:
            other_has_begun.set()
            first.join()
        return plain(*args, **options)

    monkeypatch.setattr(ast, "parse", parse)
    first = threading.Thread(target=whole, args=("pythonic", '[f(s="\\d")]'))
    first.start()
    assert has_begun.wait(10)
    (call,), _ = whole("pythonic", '[f(s="\\d")]')
    assert json.loads(call[1]) == {"s": "\\d"}
    assert warnings.filters == before


def test_a_value_with_half_a_character_is_the_text_that_it_is() -> None:
    text = f"<function=f><parameter=o>{HALF}</parameter></function>"
    (call,), content = whole("qwen3_coder", text)
    assert json.loads(call[1]) == {"o": HALF}
    assert content is None
