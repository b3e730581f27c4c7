"""Chats by templates in the manner of published families: the text, or the refusal, that
transformers has for the same template and messages; and where the two are meant to differ."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import pre_tokenizers

from hookserve.engine.text import chat_template
from hookserve.engine.text.chat_template import ChatTemplate, ChatTemplateError, render_chat
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer

TEMPLATES = Path(__file__).parent / "chat_templates"
FAMILIES = (
    "chatml",
    "command",
    "deepseek_r1",
    "gemma",
    "harmony",
    "llama3",
    "mistral",
    "phi",
    "qwen3",
    "training",
    "zephyr",
)
SOURCES = {name: (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8") for name in FAMILIES}

Messages = list[dict[str, Any]]


def call(name: str, call_id: str = "callAAAA1", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


SYSTEM = {"role": "system", "content": "  Be brief.\nSay \"please\" & <b>'thanks'</b>. "}
ASK = {"role": "user", "content": "What is the weather in Zürich?"}
SUNNY = {"role": "tool", "tool_call_id": "callAAAA1", "content": '{"sky": "☀️", "°C": 21.0}'}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [call("get_weather", city="Zürich", days=[1, 2], when=None, exact=True)],
}
CHATS: dict[str, Messages] = {
    "one question": [ASK],
    "two turns and a system": [
        SYSTEM,
        {"role": "user", "content": "Hello\n"},
        {"role": "assistant", "content": "\n  Hi! "},
        ASK,
    ],
    "special tokens and jinja in texts": [
        {"role": "user", "content": "<|im_end|>\n<|im_start|>system\n{{ bos_token }} </s>[INST]"},
        {"role": "assistant", "content": "{% raise %}<end_of_turn><|eot_id|>{# no #}\\n"},
        {"role": "user", "content": "%s {0} ${x} <tool_response>\n</tool_response>"},
    ],
    "unicode and white space": [
        {"role": "system", "content": "日本語 \u202eabc\u200b \N{ZERO WIDTH NO-BREAK SPACE}"},
        {"role": "user", "content": "\r\n\tnaïve 👩‍👩‍👧 e\u0301\u00a0\u2028\n\n"},
        {"role": "assistant", "content": "\u3000ﷺ\U0010ffff\x00 "},
        {"role": "user", "content": ""},
    ],
    "a call and its result": [SYSTEM, ASK, CALL, SUNNY],
    "a call, its result and the answer": [
        ASK,
        CALL,
        SUNNY,
        {"role": "assistant", "content": "Sunny ☀️."},
        {"role": "user", "content": "And in Rome?"},
    ],
    "parallel calls with text and thoughts": [
        SYSTEM,
        ASK,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": '\nTwo cities, <then> "é".\n',
            "tool_calls": [
                call("get_weather", city="Zürich"),
                call("no_words", "callBBBB2"),
                call("get_weather", "callCCCC3", city="'Rome'", deep={"b": [], "a": {}}),
            ],
        },
        SUNNY,
        {"role": "tool", "tool_call_id": "callBBBB2", "content": "nothing"},
    ],
    "thoughts by their older names": [
        ASK,
        {"role": "assistant", "content": "Sunny.", "reasoning": "I looked\nout."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Rain.", "thinking": "Look again."},
        {"role": "user", "content": "Thanks", "reasoning_content": None, "name": None},
    ],
    "thoughts in the text": [
        ASK,
        {"role": "assistant", "content": "<think>\nI look.\n</think>\n\nSunny."},
        {"role": "user", "content": "Thanks"},
    ],
    "an id that is too long": [
        ASK,
        {"role": "assistant", "tool_calls": [call("get_weather", "call_0123456789")]},
    ],
    "two users in a row": [ASK, ASK],
    "a role that is none": [{"role": "narrator", "content": "Once upon a time"}, ASK],
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'What the "sky" looks like, <now> & in days to come: Zürich ☀️.',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "  its name\n"},
                    "unit": {"type": "string", "enum": ["°C", "°F"]},
                    "days": {"type": "array", "items": {"type": "integer", "minimum": 1.0}},
                    "when": {"type": ["string", "null"]},
                    "deep": {"type": "object", "properties": {"a": {"type": "number"}}},
                },
                "required": ["city"],
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "no_words", "parameters": {}}},
]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "an answer begins": {"add_generation_prompt": True},
    "with tools": {"add_generation_prompt": True, "tools": TOOLS},
    "with options": {
        "add_generation_prompt": True,
        "tools": TOOLS[:1],
        "documents": [{"title": "Météo", "text": "Sun"}, {"title": "b", "text": "{{ x }}"}],
        "enable_thinking": False,
        "tools_in_user_message": False,
        "date_string": "29 Feb 2028",
        "model_identity": "Ich bin's.",
        "reasoning_effort": "high",
    },
}
NO_CONTENT = {
    "a call and its result",
    "a call, its result and the answer",
    "an id that is too long",
}
NOT_IN_TURN = {"two users in a row", "a role that is none"}
REFUSED: dict[str, set[str]] = {
    "chatml": NO_CONTENT,
    "command": {"a role that is none"},
    "gemma": {
        "two turns and a system",
        "unicode and white space",
        "a call and its result",
        "a call, its result and the answer",
        "parallel calls with text and thoughts",
        *NOT_IN_TURN,
    },
    "llama3": {"parallel calls with text and thoughts"},
    "mistral": {"an id that is too long", *NOT_IN_TURN},
    "zephyr": NO_CONTENT,
}
"""By family: the chats that its template refuses."""


class Noon(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Noon:
        return cls(2026, 2, 3, 12, 0, 0)


@pytest.fixture(scope="module")
def ours(smollm2_f32: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_f32))


@pytest.fixture(scope="module")
def theirs(smollm2_f32: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_f32)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """One time for both."""
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template, "datetime", Noon)
    monkeypatch.setattr(chat_template_utils, "datetime", Noon)


Render = Callable[..., str]


@pytest.fixture(scope="module")
def render(ours: Tokenizer) -> Render:
    @functools.cache
    def compiled(source: str) -> ChatTemplate:
        return ChatTemplate(source, ours.special_tokens, "the file")

    def rendered(source: str, messages: Messages, **given: Any) -> str:
        return compiled(source).render(messages, **{"add_generation_prompt": False, **given})

    return rendered


@pytest.fixture(scope="module")
def expect(theirs: Any) -> Render:
    def rendered(source: str, messages: Messages, **given: Any) -> str:
        text: str = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, **given
        )
        return text

    return rendered


def outcome(render: Render, source: str, messages: Messages, **given: Any) -> tuple[str, bool]:
    """The text, or the complaint; and whether it is one."""
    import jinja2

    try:
        return render(source, messages, **given), False
    except (ChatTemplateError, jinja2.TemplateError, TypeError) as error:
        return str(error).removeprefix("the chat template cannot render this: "), True


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_text_or_the_same_refusal(
    family: str, chat: str, render: Render, expect: Render
) -> None:
    refusals = set()
    for way, given in WAYS.items():
        expected = outcome(expect, SOURCES[family], CHATS[chat], **given)
        assert outcome(render, SOURCES[family], CHATS[chat], **given) == expected, way
        refusals.add(expected[1])
    assert (True in refusals) == (chat in REFUSED.get(family, ()))


# -- going on with the last message ----------------------------------------------------------------

CONTINUED: dict[str, Messages] = {
    text: [ASK, {"role": "assistant", "content": text}]
    for text in ("Red, green", "Red, green \n", "\n Red 🙂\t", "a] b <end> {{ x }}", "é\u00a0")
} | {
    "thoughts beside the text": [
        ASK,
        {"role": "assistant", "reasoning_content": "Colours.", "content": "Red, "},
    ],
    "a text that was there before": [
        {"role": "user", "content": "Red"},
        {"role": "assistant", "content": "Red"},
        ASK,
        {"role": "assistant", "content": "Red"},
    ],
    "the user's own": [{"role": "user", "content": "Once upon a "}],
    "no text": [ASK, {"role": "assistant", "content": None}],
}


@pytest.mark.parametrize("chat", CONTINUED)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_goes_on_as_with_transformers(
    family: str, chat: str, render: Render, expect: Render
) -> None:
    given: dict[str, Any] = {"continue_final_message": True}
    messages = CONTINUED[chat]
    if chat == "no text":
        with pytest.raises(ValueError, match='has no "content" to continue'):
            expect(SOURCES[family], messages, **given)
        with pytest.raises(ChatTemplateError, match="has no text to go on with"):
            render(SOURCES[family], messages, **given)
        return
    expected = expect(SOURCES[family], messages, **given)
    assert "CONTINUE" not in expected or family == "training"  # which shows messages twice
    for tag in ("CONTINUE_FINAL_MESSAGE_TAG ", "CONTINUE_FINAL_MESSAGE_TAG"):
        expected = expected.replace(tag, "")  # ours is never seen
    assert render(SOURCES[family], messages, **given) == expected


# -- small things of templates ---------------------------------------------------------------------

SMALL = (
    "{{ tools | tojson }}{{ tools | tojson(2) }}",
    "{{ tools | tojson(true, '\t', ('; ', ' = '), true) }}",
    "{{ {'b': '</é>', 'a': none} | tojson(ensure_ascii=true) }}{{ [1.0, 1e30, true] | tojson }}",
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "a \n  {%- generation -%}\n b {% endgeneration %}\n  c {%+ if 1 %} d{% endif %}\n\n",
    "{{ strftime_now('%A, %d %B %Y %H:%M') }} {{ strftime_now('%Y') | int + 1 }}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{{ m.role }}{% if true %}{% break %}{% endif %}{% endfor %}",
    "{% set ns = namespace(self=1, b=2) %}{% set ns.c = 3 %}{{ ns.self + ns.b + ns.c }}{{ ns.d }}",
    "{{ dict(a=1, **{'b': 2}) }}{{ dict([(1, 2)]).get(1) }}{{ dict.fromkeys('ab', 0) }}",
    "{{ namespace({'x': 5}, y=6).x }}{{ namespace() is mapping }}{{ dict is callable }}",
    "{{ messages[1:] | map(attribute='content') | select('string') | join('|') }}",
    "{{ messages | selectattr('name', 'defined') | list | length }}{{ messages[0].name is none }}",
    "{{ messages[-1].content.split()[0].title() }}",
    "{{ '%5.1f|%-4s|' % (2.25, 'é') }}{{ '{:>4}'.format(7) }}",
    "{% macro f(a, b='x') %}{{ a ~ b ~ varargs ~ kwargs }}{% endmacro %}{{ f(1, 2, 3, c=4) }}",
    "{% for k, v in messages[0].items() if v %}{{ k }}={{ loop.length }},{% endfor %}\r\n",
    "{{ bos_token ~ eos_token ~ unk_token ~ (pad_token or '') ~ (sep_token is defined) }}",
    "{{ raise_exception('Zürich: ' ~ messages | length) }}",
    "{{ messages[0].content + 1 }}",
    "{{ nothing.at_all }}",
    "{{ messages.append(1) }}{% set _ = messages[0].update({}) %}",
    "{{ messages.__class__ }}|{{ ''.__class__.__mro__ }}|{{ 'x'.format.__globals__ }}",
)


@pytest.mark.parametrize("source", SMALL)
def test_a_small_thing_is_as_with_transformers(source: str, render: Render, expect: Render) -> None:
    messages = [
        {"role": "user", "content": "naïve question", "name": None},
        {"role": "assistant", "content": "an answer", "tool_calls": None},
    ]
    given: dict[str, Any] = {"tools": TOOLS}
    expected = outcome(expect, source, messages, **given)
    assert outcome(render, source, messages, **given) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% set _ = dict.update(messages[0], role='x') %}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__html__ = dict %}",
    ],
)
def test_what_neither_allows(source: str, render: Render, expect: Render) -> None:
    messages = [dict(ASK)]
    for side in (expect, render):
        assert outcome(side, source, messages)[1]
    assert messages == [ASK]


# -- where the two are meant to differ -------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_developer_is_the_system_where_transformers_passes_on_a_role_that_is_none(
    family: str, render: Render, expect: Render
) -> None:
    """The API renamed a role; a template that was there before has another name for it."""
    knows = family == "harmony"
    as_system, as_developer = (
        [{"role": role, "content": "Be brief."}, ASK] for role in ("system", "developer")
    )
    expected = outcome(expect, SOURCES[family], as_developer if knows else as_system)
    assert outcome(render, SOURCES[family], as_developer) == expected
    if not knows:
        assert outcome(expect, SOURCES[family], as_developer) != expected


@pytest.mark.parametrize("family", ["gemma", "llama3"])
@pytest.mark.parametrize("content", ["", " \n"])
def test_a_message_of_white_space_that_is_trimmed_leaves_the_head_of_the_turn_whole(
    family: str, content: str, render: Render, expect: Render
) -> None:
    """transformers takes the head's own line ends too; the model has learned to go on after them,
    as it does where an answer begins."""
    chat = [ASK, {"role": "assistant", "content": content}]
    begun = expect(SOURCES[family], chat[:1], add_generation_prompt=True)
    given: dict[str, Any] = {"continue_final_message": True}
    assert render(SOURCES[family], chat, **given) == begun
    assert expect(SOURCES[family], chat, **given) == begun.rstrip()


def test_a_last_message_that_the_template_rewrites_is_gone_on_with(
    render: Render, expect: Render
) -> None:
    """The end of the text is known by a mark, so nothing need be the same in front of it."""
    chat = [ASK, {"role": "assistant", "content": "<think>I look.</think>Sun"}]
    given: dict[str, Any] = {"continue_final_message": True}
    text = render(SOURCES["qwen3"], chat, **given)
    assert text.endswith("<|im_start|>assistant\n<think>\nI look.\n</think>\n\nSun")
    with pytest.raises(ValueError, match="does not appear in the chat"):
        expect(SOURCES["qwen3"], chat, **given)


def test_parts_are_the_callers_to_join(render: Render, expect: Render) -> None:
    """Both ways in, the server's and the offline one, hand templates one text."""
    chat = [{"role": "user", "content": [{"type": "text", "text": "Red"}]}]
    source = "{{ messages[0].content[0].text }}."
    given: dict[str, Any] = {"continue_final_message": True}
    assert expect(source, chat, **given) == "Red"
    with pytest.raises(ChatTemplateError, match="has no text to go on with"):
        render(source, chat, **given)


@pytest.mark.parametrize("name", ["bos_token", "strftime_now"])
def test_options_do_not_replace_what_the_tokenizer_or_the_server_says(
    name: str, render: Render, expect: Render
) -> None:
    """Options come with requests, the rest from the operator."""
    source = f"{{{{ {name} }}}}"
    assert expect(source, [ASK], **{name: "given"}) == "given"
    with pytest.raises(ChatTemplateError, match=f"'{name}' is reserved"):
        render(source, [ASK], **{name: "given"})


@pytest.mark.parametrize("source", ["{{ lipsum(n=1) }}", "{{ 2 ** 3 }}", "{{ 'ab' * 600000 }}"])
def test_what_could_take_all_time_and_memory_is_not_allowed(
    source: str, render: Render, expect: Render
) -> None:
    """No published template needs it."""
    assert not outcome(expect, source, [ASK])[1]
    assert outcome(render, source, [ASK])[1]


# -- tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [chat for chat in CHATS if chat not in NO_CONTENT])
def test_the_tokens_of_a_chat_by_the_models_own_template(
    chat: str, ours: Tokenizer, theirs: Any
) -> None:
    ids = theirs.apply_chat_template(CHATS[chat], add_generation_prompt=True)["input_ids"]
    text = render_chat(ours, CHATS[chat])
    assert ours.encode(text, add_special_tokens=False) == ids


@pytest.fixture(scope="module")
def digits_alone(theirs: Any) -> Reference:
    """The tokenizer as the model was trained with it: transformers' reading of a GGUF file, of
    which the folder was made, leaves out that each digit is a token."""
    backend = Reference.from_str(theirs.backend_tokenizer.to_str())
    split = [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    return backend


def test_the_tokens_of_every_text(
    ours: Tokenizer, theirs: Any, smollm2_gguf: Path, digits_alone: Reference, render: Render
) -> None:
    in_gguf = load_tokenizer(str(smollm2_gguf))
    num_texts = 0
    for family, chat in itertools.product(FAMILIES, CHATS):
        text, is_refused = outcome(render, SOURCES[family], CHATS[chat], **WAYS["with tools"])
        if is_refused:
            continue
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == ids, (family, chat)
        ids = digits_alone.encode(text, add_special_tokens=False).ids
        assert in_gguf.encode(text, add_special_tokens=False) == ids, (family, chat)
        num_texts += 1
    assert num_texts == len(FAMILIES) * len(CHATS) - sum(map(len, REFUSED.values()))
