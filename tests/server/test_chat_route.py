"""``/v1/chat/completions`` over a scripted engine: shapes, templates, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from scripted_engine import say

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def chunks_of(text: str) -> list[Any]:
    data = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def test_a_whole_reply_has_exactly_the_documented_fields(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("hey", "stop")) as served:
            reply = await served.http.post(PATH, json={"model": "org/alias", "messages": HELLO})
            (request,) = served.engine.requests
        body = reply.json()
        assert body.pop("id").startswith("chatcmpl-")
        assert isinstance(body.pop("created"), int)
        rendered = "<user>hi<assistant>"
        assert bytes(request.prompt_token_ids).decode() == rendered
        # Where the client says nothing, the answer may fill the context.
        assert request.params.max_tokens == 128 - len(rendered)
        assert body == {
            "object": "chat.completion",
            "model": "org/alias",
            "choices": [
                {
                    "index": 0,
                    # The last token ended the reply, so its text is not part of it.
                    "message": {"role": "assistant", "content": "he", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": len(rendered),
                "completion_tokens": 3,
                "total_tokens": len(rendered) + 3,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }

    asyncio.run(run())


def test_a_stream_has_role_text_end_usage_and_done(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("hey")) as served:
            reply = await served.http.post(
                PATH,
                json={
                    "messages": HELLO,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                },
            )
        *chunks, usage, done = chunks_of(reply.text)
        assert done == "[DONE]"
        assert {c["object"] for c in [*chunks, usage]} == {"chat.completion.chunk"}
        assert len({(c["id"], c["created"], c["model"]) for c in [*chunks, usage]}) == 1
        choices = [c["choices"][0] for c in chunks]
        assert [c["delta"] for c in choices] == [
            {"role": "assistant", "content": ""},
            {"content": "h"},
            {"content": "e"},
            {"content": "y"},
            {},
        ]
        assert [c["finish_reason"] for c in choices] == [None] * 4 + ["length"]
        assert all(c["usage"] is None for c in chunks)
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3

    asyncio.run(run())


@pytest.mark.parametrize("text", ["plain", "añé→🙂"])
def test_the_whole_reply_is_the_fold_of_the_stream(serve_script: Any, text: str) -> None:
    async def run() -> None:
        body = {"messages": HELLO, "return_token_ids": True, "max_tokens": 40}
        async with serve_script(say(text)) as served:
            whole = (await served.http.post(PATH, json=body)).json()
            reply = await served.http.post(PATH, json={**body, "stream": True})
        chunks = chunks_of(reply.text)[:-1]
        deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks]
        ids = [i for c in chunks for i in c["choices"][0].get("token_ids", [])]
        (choice,) = whole["choices"]
        assert choice["message"]["content"] == "".join(deltas) == text
        assert choice["token_ids"] == ids == list(text.encode())
        assert whole["prompt_token_ids"] == chunks[0]["prompt_token_ids"]

    asyncio.run(run())


def test_text_parts_are_joined_and_names_passed(serve_script: Any) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "s", "name": "boss"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
    ]

    async def run() -> None:
        async with serve_script(say("x")) as served:
            reply = await served.http.post(PATH, json={"messages": messages})
            (request,) = served.engine.requests
        assert reply.status_code == 200
        rendered = bytes(request.prompt_token_ids).decode()
        assert rendered == "<system>s<user>a\nb<assistant>c<assistant>"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "weight": 2}]},
            "messages[0].content[0].weight",
        ),
        ({"role": "user", "content": "ab " * 500_000}, "messages"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls[0].id"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
        ({"role": "villain", "content": "x"}, "messages"),
    ],
)
def test_messages_are_refused_by_path(serve_script: Any, message: Any, param: str) -> None:
    async def run() -> None:
        async with serve_script(say("x")) as served:
            reply = await served.http.post(PATH, json={"messages": [message]})
            assert served.engine.requests == []
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param

    asyncio.run(run())


def test_the_templates_own_complaint_is_a_400(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("x")) as served:
            reply = await served.http.post(
                PATH, json={"messages": [{"role": "villain", "content": "x"}]}
            )
        assert reply.status_code == 400
        assert "no villains" in reply.json()["error"]["message"]

    asyncio.run(run())


def test_max_completion_tokens_wins_over_max_tokens(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("x")) as served:
            for extra in ({"max_tokens": 4}, {"max_completion_tokens": 5, "max_tokens": 4}):
                await served.http.post(PATH, json={"messages": HELLO, **extra})
            assert [r.params.max_tokens for r in served.engine.requests] == [4, 5]

    asyncio.run(run())


def test_a_hidden_end_token_is_in_the_ids_and_not_in_the_text(serve_script: Any) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        return [
            EngineCoreOutput(request.request_id, [97]),
            EngineCoreOutput(request.request_id, [256], "stop"),
        ]

    async def run() -> None:
        body = {"messages": HELLO, "stream": True, "return_token_ids": True}
        async with serve_script(script) as served:
            reply = await served.http.post(PATH, json=body)
        choices = [c["choices"][0] for c in chunks_of(reply.text)[:-1]]
        assert [c["delta"].get("content") for c in choices] == ["", "a", None]
        assert [c.get("token_ids") for c in choices] == [None, [97], [256]]
        assert choices[-1]["finish_reason"] == "stop"

    asyncio.run(run())
