"""Chat templates: the same text as transformers renders; complaints, limits and the sandbox."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.text import chat_template
from hookserve.engine.text.chat_template import ChatTemplate, ChatTemplateError, render_chat
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer

TURNS = """\
{%- if messages[0].role == 'system' -%}
    {%- set system = messages[0].content -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = 'You are helpful.' -%}
    {%- set rest = messages -%}
{%- endif -%}
{{ bos_token }}<|system|>
{{ system | trim }}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate: ' + message.role) }}
    {% endif %}
<|{{ message['role'] }}|>
{{ message['content'] | trim }}{{ eos_token if message.role == 'assistant' else '' }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""

TOOLS = """\
{% if tools is not none and tools is defined %}
<tools>
    {% for tool in tools %}
{{ tool | tojson }}
    {% endfor %}
</tools>
{{ tools | tojson(indent=2) }}
{% endif %}
{% for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.content is string %}
{{ m.role ~ ': ' ~ m.content }}
    {%- else %}
        {%- for part in m.content %}
            {%- if part.type == 'image' %}{% break %}{% endif %}
{{ part.text }}
        {%- endfor %}
    {%- endif %}
{% endfor %}
"""

MACROS = """\
{%- macro show(m, depth=0) -%}
{{ '  ' * depth }}[{{ m.role | upper }}] {{ m.content }}
{%- endmacro -%}
{%- set state = namespace(seen=0) -%}
{%- for m in messages -%}
    {%- set state.seen = state.seen + 1 -%}
    {{ show(m, loop.index) }}{{ ', ' if not loop.last }}{{ loop.length }}
{%- else -%}
    nothing
{%- endfor %} ({{ state.seen }}) {{ documents is none }} {{ missing is defined }} {{ custom }}
"""

TRAINING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is <b> & 'c'?"}],
    [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "héllo 🙂\n"},
        {"role": "assistant", "content": "{{ not a template }}"},
        {"role": "user", "content": "{% bye %}"},
    ],
]
PARTS = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
TOOL = {"type": "function", "function": {"name": "f<&>é", "parameters": {"b": [1, None], "a": "'"}}}


@pytest.fixture
def reference(tiny_llama: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture
def ours(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(str(tiny_llama))


def both(reference: Any, ours: Tokenizer, source: str, messages: Any, **kwargs: Any) -> str:
    expected: str = reference.apply_chat_template(
        messages, chat_template=source, tokenize=False, **kwargs
    )
    template = ChatTemplate(source, ours.special_tokens, "test")
    assert render_chat(template, messages, **kwargs) == expected
    return expected


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_tokenizers_own_template(
    reference: Any, ours: Tokenizer, messages: Any, add_generation_prompt: bool
) -> None:
    expected = reference.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    found = render_chat(ours, messages, add_generation_prompt=add_generation_prompt)
    assert found == expected


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("source", [TURNS, TOOLS, TRAINING])
def test_the_same_text_as_transformers(
    reference: Any, ours: Tokenizer, source: str, messages: Any, add_generation_prompt: bool
) -> None:
    both(reference, ours, source, messages, add_generation_prompt=add_generation_prompt)


def test_tools_parts_loop_controls_and_json(reference: Any, ours: Tokenizer) -> None:
    messages = [
        {"role": "skip", "content": "not seen"},
        {"role": "user", "content": PARTS},
        {"role": "user", "content": "end"},
    ]
    text = both(reference, ours, TOOLS, messages, tools=[TOOL], add_generation_prompt=False)
    assert json.dumps(TOOL, ensure_ascii=False) in text
    assert "one" in text
    assert "two" not in text
    assert "not seen" not in text


@pytest.mark.parametrize("messages", [[], CHATS[0], CHATS[1]])
def test_macros_namespaces_and_options(reference: Any, ours: Tokenizer, messages: Any) -> None:
    if messages:
        both(reference, ours, MACROS, messages, custom="x", add_generation_prompt=True)
    template = ChatTemplate(MACROS, {}, "test")
    assert "custom" not in template.render([], custom="x")
    assert template.render([], custom="x").endswith("(0) True False x")


def test_the_date(ours: Tokenizer) -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}, "test")
    before, text, after = datetime.now(), template.render([]), datetime.now()
    assert text in {before.strftime("%Y-%m-%d"), after.strftime("%Y-%m-%d")}


def test_the_default_models_template(smollm2_gguf: Path, smollm2_f32: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2_f32)
    for path in (smollm2_gguf, smollm2_f32):
        tokenizer = load_tokenizer(str(path))
        for messages in CHATS:
            text = render_chat(tokenizer, messages)
            assert text == theirs.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            assert tokenizer.encode(text, add_special_tokens=False) == ids


def complaint(source: str, messages: Any = CHATS[0], **kwargs: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, "the file")
    with pytest.raises(ChatTemplateError) as raised:
        template.render(messages, **kwargs)
    return str(raised.value)


def test_the_templates_own_complaint_is_passed_on_as_it_is() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert complaint(TURNS, messages) == "Roles must alternate: user"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].role.upper() }}",
        "{% for x in 5 %}{% endfor %}",
        "{{ messages | no_such.x }}",
        "{{ messages.append(1) }}",
        "{% for m in messages %}{% set _ = m.update({'role': 'x'}) %}{% endfor %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_what_cannot_be_rendered_or_is_not_allowed(source: str) -> None:
    try:
        complaint(source)
    except ChatTemplateError as error:
        assert "the file, line 1" in str(error)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.pop() }}",
        "{{ dict.update(messages[0], role='x') }}",
        "{{ dict.pop(messages[0], 'role') }}",
    ],
)
def test_messages_are_not_changed(source: str) -> None:
    messages = [{"role": "user", "content": "a"}]
    complaint(source, messages)
    assert messages == [{"role": "user", "content": "a"}]


def test_a_template_that_does_not_parse_says_where() -> None:
    with pytest.raises(ChatTemplateError, match=r"chat template of the file, line 2: "):
        ChatTemplate("a\n{% if %}", {}, "the file")


@pytest.mark.parametrize("name", ["messages", "tokenize", "chat_template", "bos_token"])
def test_options_cannot_take_reserved_names(name: str) -> None:
    template = ChatTemplate("x", {"bos_token": "<s>"}, "test")
    options: dict[str, Any] = {name: "y"}
    if name == "messages":
        options = {"conversation": "y"}
    with pytest.raises(ChatTemplateError, match=f"'{next(iter(options))}' is reserved"):
        template.render([], **options)


NESTED = (
    "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
DOUBLING = (
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
)


LISTS = "{{ ([[0] * 99999] * 99999) | sum(start=[]) | length }}"


@pytest.mark.parametrize("source", [NESTED, DOUBLING, LISTS])
def test_time_is_limited(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDER_S", 0.05)
    started = time.monotonic()
    assert complaint(source) == "the chat template takes more than 0.05 s"
    assert time.monotonic() - started < 2


def test_no_macro_runs_where_nobody_counts() -> None:
    """Python asks an object for ``__html__`` when it is escaped."""
    source = "{% macro f() %}x{% endmacro %}{% set ns = namespace() %}{% set ns.__html__ = f %}"
    assert "may not begin with '_' (given: '__html__')" in complaint(source + "{{ ns | e }}")
    assert "(given: '_f')" in complaint("{{ namespace({'_f': 1}) }}")
    assert "'lipsum' is undefined" in complaint("{{ lipsum(n=999999) }}")


def test_output_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_OUTPUT_CHARS", 1000)
    source = "{% for a in range(9999) %}0123456789{% endfor %}"
    assert complaint(source) == "the chat template makes more than 1000 characters"


@pytest.mark.parametrize(
    "source", ["{{ 'ab' * 99999999 }}", "{{ 99999999 * [1] }}", "{{ 9 ** 9 }}"]
)
def test_repetition_is_limited(source: str) -> None:
    assert re.fullmatch(r"the chat template uses '\*+' beyond its limit", complaint(source))


GROWTH_BY_CONCAT = (
    "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x OP ns.x %}"
    "{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.center(9999999999) }}",
        "{{ 'a'.ljust(width) }}",
        "{{ '\t'.expandtabs(9999999999) }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ ' '.join(['a' * 99999] * 99999) }}",
        "{{ ('a' * 99999).join(['b'] * 99999) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{w}}'.format(1, w=9999999999) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | indent(9999999999, true) }}",
        "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
        "{{ (['a' * 99999] * 99999) | map('upper') | join }}",
        "{{ ([{'x': 'a' * 99999}] * 99999) | join(attribute='x') }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ [1] | slice(9999999999) | list }}",
        "{{ [1] | batch(9999999999, 'x') | list }}",
        "{{ 1.5 | round(9999999999, 'ceil') }}",
        "{{ [1] | tojson(indent=9999999999) }}",
        "{{ [1] | tojson(separators=('x' * 999, ':')) }}",
        GROWTH_BY_CONCAT.replace("OP", "~"),
        GROWTH_BY_CONCAT.replace("OP", "+"),
    ],
)
def test_no_operation_makes_much_of_little(source: str) -> None:
    source = source.replace("width", "9999999999")
    assert re.fullmatch(r"the chat template uses '\S+' beyond its limit", complaint(source))


def test_operations_that_could_grow_do_what_they_do() -> None:
    source = (
        "{{ 'a'.center(3) }}|{{ 'x-y'.replace('-', '+') }}|{{ ', '.join(['a', 'b']) }}|"
        "{{ '{}={:>3}'.format('n', 7) }}|{{ 'b' | center(3) }}|{{ 'c\nd' | indent(1) }}|"
        "{{ 'x' | replace('x', 'yy') }}|{{ [1, 'z'] | join('-') }}|"
        "{{ [{'k': 'v'}, {'k': 'w'}] | join(',', attribute='k') }}|{{ '%s!' | format('e') }}|"
        "{{ '%s-%d' % ('f', 3) }}|{{ '%(q)s' % {'q': 'g'} }}|{{ 1 ~ 'h' }}|{{ 'i' + 'j' }}|"
        "{{ 7 % 4 }}|{{ [1] + [2] }}|{{ 5 | replace('5', '6') }}|"
        "{{ [1, 2, 3] | batch(2, 0) | list }}|{{ [1, 99999] | slice(2) | list }}|"
        "{{ 1.26 | round(1) }}|{{ [[1], [2]] | sum(start=[]) }}|"
        "{{ [{'k': 2}, {'k': 3}] | sum('k') }}"
    )
    assert ChatTemplate(source, {}, "the file").render([]) == (
        " a |x+y|a, b|n=  7| b |c\n d|yy|1-z|v,w|e!|f-3|g|1h|ij|3|[1, 2]|6|"
        "[[1, 2], [3, 0]]|[[1], [99999]]|1.3|[1, 2]|5"
    )


def test_a_recursion_without_end() -> None:
    source = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
    assert complaint(source) == "the chat template recurses without end"


def test_the_tokenizers_template_is_compiled_once(
    ours: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_chat(ours, CHATS[0])

    def compile_again(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(ChatTemplate, "__init__", compile_again)
    render_chat(ours, CHATS[0])


def test_a_tokenizer_without_a_template(byte_level: Tokenizer) -> None:
    bare = Tokenizer(byte_level.backend, origin="x", special_tokens={}, chat_templates={"rag": "y"})
    with pytest.raises(ChatTemplateError, match="no chat template; it has templates named rag"):
        render_chat(bare, CHATS[0])


ASK = {"role": "user", "content": "Name three colours."}


@pytest.mark.parametrize("content", ["Red, green", "Red, green  ", " \n", ""])
def test_a_chat_goes_on_with_its_last_message(content: str) -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    chat = [ASK, {"role": "assistant", "content": content}]
    text = ChatTemplate(source, {}, "the file").render(
        chat, add_generation_prompt=False, continue_final_message=True
    )
    assert text == f"<user>Name three colours.</><assistant>{content}"


@pytest.mark.parametrize(
    ("content", "kept"),
    [("Red, green \n", "<assistant>\nRed, green"), ("Red", "<assistant>\nRed")]
    + [(blank, "<assistant>\n") for blank in ("", "  ", "\n")],
)
def test_a_last_message_that_the_template_trims_is_trimmed(content: str, kept: str) -> None:
    source = "{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}</>{% endfor %}"
    chat = [{"role": "assistant", "content": content}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert ChatTemplate(source, {}, "the file").render(chat, **options) == kept


def test_a_last_message_that_is_shown_twice_goes_on_where_it_ends_last() -> None:
    source = "{{ messages[0].content }}|{{ messages[0].content | trim }}|{{ messages }}"
    source += "|{{ messages[0].content | upper }}"
    chat = [{"role": "assistant", "content": "a "}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    text = ChatTemplate(source, {}, "the file").render(chat, **options)
    assert text == "a |a |[{'role': 'assistant', 'content': 'a "


def test_what_is_none_in_a_message_is_left_out() -> None:
    source = "{% for m in messages %}{{ m.content }}{{ m.keys() | list | length }};{% endfor %}"
    chat = [ASK, {"role": "assistant", "content": None, "tool_calls": [], "name": None}]
    text = ChatTemplate(source, {}, "the file").render(chat)
    assert text == "Name three colours.2;2;"
    assert chat[1]["name"] is None


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_shown_by_the_names_that_templates_have(name: str) -> None:
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    chat = [{"role": "assistant", "content": "Red.", name: "Hm."}]
    assert ChatTemplate(source, {}, "the file").render(chat) == "Hm. Hm."


def test_the_end_of_the_last_message_is_found_among_texts_that_look_like_it() -> None:
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}{{ '(end)' }}"
    chat = [{"role": "user", "content": "a] b"}, {"role": "assistant", "content": "a"}]
    template = ChatTemplate(source, {}, "the file")
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(chat, **options) == "[a] b][a"
    assert template.render(chat, add_generation_prompt=False) == "[a] b][a](end)"


@pytest.mark.parametrize(
    ("source", "last", "complaint"),
    [
        ("{{ messages[0].content }}", "x", "leaves the last message's text out"),
        ("x", None, "has no text to go on with"),
    ],
)
def test_a_last_message_that_cannot_be_continued(source: str, last: Any, complaint: str) -> None:
    chat = [ASK, {"role": "assistant", "content": last}]
    template = ChatTemplate(source, {}, "the file")
    with pytest.raises(ChatTemplateError, match=complaint):
        template.render(chat, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="not both"):
        template.render(chat, continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("{{ messages[0].role }}", "system"),
        ("{{ 'known' if messages[0].role == 'developer' else 'other' }}", "known"),
    ],
)
def test_a_developer_is_the_system_where_a_template_knows_no_developer(
    source: str, role: str
) -> None:
    chat = [{"role": "developer", "content": "Be brief."}]
    assert ChatTemplate(source, {}, "the file").render(chat) == role
    assert chat[0]["role"] == "developer"


def test_the_names_that_a_template_reads() -> None:
    source = "{% set own = thinking %}{{ own ~ messages[0].content }}{% if depth %}x{% endif %}"
    assert ChatTemplate(source, {}, "the file").variables == {"thinking", "messages", "depth"}
