"""The fields that say what becomes a request's prompt, and how it is called: what reaches the
engine. The tokenizer of these tests has a token for each byte, and 256 is the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from scripted_engine import say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Well, "}


def sent(serve_script: Any, path: str, body: dict[str, Any]) -> tuple[Any, list[AddRequest]]:
    """The reply, which must be a good one, and what the engine was asked for."""

    async def run() -> tuple[Any, list[AddRequest]]:
        async with serve_script(say("a")) as served:
            reply = await served.http.post(path, json=body)
            assert reply.status_code == 200, reply.text
            return reply, served.engine.requests

    return asyncio.run(run())


def prompts_of(serve_script: Any, path: str, body: dict[str, Any]) -> list[str]:
    _, requests = sent(serve_script, path, body)
    return [bytes(request.prompt_token_ids).decode() for request in requests]


def refusal_of(serve_script: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with serve_script(say("a")) as served:
            reply = await served.http.post(path, json=body)
            assert reply.status_code == 400, reply.text
            assert served.engine.requests == []
            return dict(reply.json()["error"])

    return asyncio.run(run())


ALPHABET = "abcdefghij"


@pytest.mark.parametrize(
    ("fields", "prompts"),
    [
        ({"truncate_prompt_tokens": 3}, ["hij"]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, ["hij"]),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, ["abc"]),
        ({"truncate_prompt_tokens": 10}, [ALPHABET]),
        ({"truncate_prompt_tokens": 11}, [ALPHABET]),
        ({"truncate_prompt_tokens": 2, "prompt": ["abc", "d"]}, ["bc", "d"]),
        ({"truncate_prompt_tokens": 2, "prompt": [97, 98, 99]}, ["bc"]),
        ({"truncate_prompt_tokens": 1, "prompt": [[97, 98], [99]]}, ["b", "c"]),
        # A context of 128: room for max_tokens is left, which is 16 if nothing is said.
        ({"truncate_prompt_tokens": -1, "prompt": "a" * 200 + "z"}, ["a" * 111 + "z"]),
        ({"truncate_prompt_tokens": -1, "prompt": "a" * 200, "max_tokens": 100}, ["a" * 28]),
        ({"truncate_prompt_tokens": -1, "prompt": [97] * 5000, "max_tokens": 127}, ["a"]),
    ],
)
def test_a_longer_prompt_is_shortened(
    serve_script: Any, fields: dict[str, Any], prompts: list[str]
) -> None:
    assert prompts_of(serve_script, COMPLETIONS, {"prompt": ALPHABET, **fields}) == prompts


def test_a_longer_chat_is_shortened(serve_script: Any) -> None:
    body = {"messages": [{**USER, "content": "x" * 500}], "truncate_prompt_tokens": 13}
    assert prompts_of(serve_script, CHAT, body) == ["xx<assistant>"]
    body = {"messages": [{**USER, "content": "x" * 500}], "truncate_prompt_tokens": -1}
    assert prompts_of(serve_script, CHAT, body) == ["x" * 101 + "<assistant>"]


def test_a_shortened_chat_keeps_the_tokens_that_were_asked_for(
    serve_script: Any, tiny_bos: Any
) -> None:
    body = {"messages": [USER], "truncate_prompt_tokens": 3, "add_special_tokens": True}
    _, (request,) = sent(serve_script, CHAT, body)
    assert request.prompt_token_ids == [256, *b"t>"]
    _, (request,) = sent(serve_script, CHAT, {**body, "truncation_side": "right"})
    assert request.prompt_token_ids == [256, *b"<u"]


def test_a_shortened_prompt_keeps_the_tokens_that_its_tokenizer_adds(tiny_bos: Any) -> None:
    assert tiny_bos.encode("abcd") == [256, 97, 98, 99, 100]
    assert tiny_bos.encode_part("abcd", 3, "end") == [256, 99, 100]
    assert tiny_bos.encode_part("abcd", 3, "start") == [256, 97, 98]
    assert tiny_bos.encode_part("abcd", 3, "end", False) == [98, 99, 100]
    assert tiny_bos.encode_part("abcd", 9, "end") == tiny_bos.encode("abcd")
    assert tiny_bos.encode_part("abcd", 1, "end") == [256]
    assert tiny_bos.encode_part("", 1, "end") == [256]
    assert tiny_bos.encode_part("<eos>a", 2, "start") == [256, 256]
    assert tiny_bos.encode_part("a<eos>", 9, "end") == [256, 97, 256]


@pytest.fixture
def tiny_bos(byte_tokenizer: Any) -> Any:
    """Puts the end token in front, as others do with BOS."""
    from tokenizers.processors import TemplateProcessing

    byte_tokenizer.backend.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", 256)]
    )
    return byte_tokenizer


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_whether_special_tokens_are_added(serve_script: Any, tiny_bos: Any, path: str) -> None:
    begin: dict[str, Any] = {COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": [USER]}}[path]
    found = []
    for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        _, (request,) = sent(serve_script, path, {**begin, **fields})
        found.append(request.prompt_token_ids.count(256))
    assert found == ([1, 1, 0] if path == COMPLETIONS else [0, 1, 0])


@pytest.mark.parametrize(
    "text", ["a\x00b", "\ufffe\uffff", "\u202ea\ufeff", "e\u0301\u200d", "\U0010ffff"]
)
def test_characters_that_few_expect_are_characters(serve_script: Any, text: str) -> None:
    completion = {"prompt": text, "stop": text, "cache_salt": text}
    assert prompts_of(serve_script, COMPLETIONS, completion) == [text]
    chat = {"messages": [{**USER, "content": text}], "stop": [text]}
    assert prompts_of(serve_script, CHAT, chat) == [f"<user>{text}<assistant>"]


def test_a_prompt_that_begins_with_the_token_that_is_added_says_so_itself(
    serve_script: Any, tiny_bos: Any
) -> None:
    """The tokenizer's rule knows nothing of the text behind it; the client has the switch."""
    begun = {"prompt": "<eos>a"}
    prompts = []
    for fields in ({}, {"add_special_tokens": False}):
        _, (request,) = sent(serve_script, COMPLETIONS, {**begun, **fields})
        prompts.append(request.prompt_token_ids)
    assert prompts == [[256, 256, 97], [256, 97]]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "<user>hi<assistant>Well, <assistant>"),
        ({"add_generation_prompt": True}, "<user>hi<assistant>Well, <assistant>"),
        ({"add_generation_prompt": False}, "<user>hi<assistant>Well, "),
        ({"continue_final_message": True}, "<user>hi<assistant>Well, "),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            "<user>hi<assistant>Well, ",
        ),
        ({"chat_template_kwargs": {"quiet": True}}, "(quiet)<user>hi<assistant>Well, <assistant>"),
        ({"reasoning_effort": "low"}, "(low)<user>hi<assistant>Well, <assistant>"),
    ],
)
def test_how_a_chat_is_rendered(
    serve_script: Any, byte_tokenizer: Any, fields: dict[str, Any], prompt: str
) -> None:
    byte_tokenizer.chat_templates["default"] = (
        "{% if quiet %}(quiet){% endif %}{% if reasoning_effort %}({{ reasoning_effort }})"
        "{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    reply, (request,) = sent(serve_script, CHAT, {"messages": [USER, BEGUN], **fields})
    assert bytes(request.prompt_token_ids).decode() == prompt
    assert "x-hookserve-unused" not in reply.headers


def test_options_that_the_template_does_not_look_at_are_named(serve_script: Any) -> None:
    fields = {"chat_template_kwargs": {"thinking": 1, "a": 2}, "reasoning_effort": "high"}
    body = {"messages": [USER], **fields, "user": "u", "vllm_xargs": {"x": 1}}
    reply, _ = sent(serve_script, CHAT, body)
    assert reply.headers["x-hookserve-unused"] == (
        "chat_template_kwargs.a, chat_template_kwargs.thinking, reasoning_effort, user, vllm_xargs"
    )


def test_options_that_the_template_of_tools_looks_at_are_not_named(
    serve_script: Any, byte_tokenizer: Any
) -> None:
    byte_tokenizer.chat_templates["tool_use"] = "{{ tools | length }}{{ quiet }}"
    body = {"messages": [USER], "chat_template_kwargs": {"quiet": True}}
    reply, _ = sent(serve_script, CHAT, body)
    assert reply.headers["x-hookserve-unused"] == "chat_template_kwargs.quiet"
    tool = {"type": "function", "function": {"name": "weather"}}
    reply, (request,) = sent(serve_script, CHAT, {**body, "tools": [tool], "tool_choice": "none"})
    assert bytes(request.prompt_token_ids).decode() == "1True"
    assert "x-hookserve-unused" not in reply.headers


def test_options_that_a_parser_looks_at_are_not_named(serve_script: Any) -> None:
    async def run() -> Any:
        async with serve_script(say("a"), reasoning_parser="qwen3") as served:
            options = {"chat_template_kwargs": {"enable_thinking": False}}
            return await served.http.post(CHAT, json={"messages": [USER], **options})

    assert "x-hookserve-unused" not in asyncio.run(run()).headers


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        # What decides what a template does at all: a request must not set it.
        *(
            ({"chat_template_kwargs": {name: "x"}}, f"chat_template_kwargs.{name}")
            for name in ("chat_template", "tokenize", "conversation", "messages", "eos_token")
        ),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs.a b"),
        ({"chat_template_kwargs": {"x\r\ny": 1}}, "chat_template_kwargs.x\r\ny"),
        ({"chat_template_kwargs": {"": 1}}, "chat_template_kwargs."),
        ({"chat_template_kwargs": {f"n{i}": 1 for i in range(65)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 70_000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": json.loads("[" * 40 + "]" * 40)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"messages": [USER] * 8193}, "messages"),
        ({"messages": {}}, "messages"),
        ({"echo": True}, "echo"),
        ({"audio": {}}, "audio"),
    ],
)
def test_what_a_chat_cannot_say(serve_script: Any, fields: dict[str, Any], param: str) -> None:
    assert refusal_of(serve_script, CHAT, {"messages": [USER], **fields})["param"] == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_a_part_that_is_no_text_is_refused_by_its_type(serve_script: Any, kind: str) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "http://x/y.png"}}]
    error = refusal_of(serve_script, CHAT, {"messages": [{**USER, "content": parts}]})
    assert error["param"] == "messages[0].content[1].type"
    assert kind in error["message"]


def test_a_name_of_the_request_is_in_its_reply_and_header(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("ab")) as served:
            named = {"prompt": "a", "request_id": "mine-1"}
            headers = {"x-request-id": "header"}
            reply = await served.http.post(COMPLETIONS, json=named, headers=headers)
            assert reply.json()["id"] == "cmpl-mine-1"
            assert reply.headers["x-request-id"] == "mine-1"
            other = await served.http.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
            assert other.json()["id"] != "cmpl-header"
            assert other.headers["x-request-id"] == "header"

    asyncio.run(run())


def test_requests_of_one_name_get_each_its_own_answer(serve_script: Any) -> None:
    def shout(request: AddRequest) -> list[EngineCoreOutput]:
        return say(bytes(request.prompt_token_ids).decode().upper())(request)

    async def run() -> None:
        async with serve_script(shout) as served:
            headers = {"x-request-id": "same"}
            bodies = [{"prompt": f"text {at}"} for at in range(5)]
            bodies += [{"prompt": f"text {at}", "request_id": "same"} for at in range(5, 10)]
            replies = await asyncio.gather(
                *(served.http.post(COMPLETIONS, json=body, headers=headers) for body in bodies)
            )
            ids = {request.request_id for request in served.engine.requests}
        assert len(ids) == 10
        for at, reply in enumerate(replies):
            assert reply.headers["x-request-id"] == "same"
            assert reply.json()["choices"][0]["text"] == f"TEXT {at}"

    asyncio.run(run())


def test_a_stream_is_not_padded(serve_script: Any) -> None:
    fields = {"stream": True, "stream_options": {"include_obfuscation": False}}
    reply, _ = sent(serve_script, COMPLETIONS, {"prompt": "a", **fields})
    assert reply.headers["x-hookserve-unused"] == "stream_options.include_obfuscation"


def test_the_newest_of_two_names_for_the_longest_answer_counts(serve_script: Any) -> None:
    limits = {"max_tokens": 9, "max_completion_tokens": 4}
    _, (request,) = sent(serve_script, CHAT, {"messages": [USER], **limits})
    assert request.params.max_tokens == 4
    _, (request,) = sent(serve_script, CHAT, {"messages": [USER]})
    assert request.params.max_tokens == 128 - len("<user>hi<assistant>")
    _, (request,) = sent(serve_script, COMPLETIONS, {"prompt": "a"})
    assert request.params.max_tokens == 16
