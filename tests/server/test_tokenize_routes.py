"""``/tokenize`` and ``/detokenize``: the ids that other routes generate from, and their text."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scripted_engine import say

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
USER = {"role": "user", "content": "hi"}


def ask(serve_script: Any, path: str, body: Any) -> Any:
    async def run() -> Any:
        async with serve_script(say("a")) as served:
            reply = await served.http.post(path, json=body)
            assert served.engine.requests == []
            return reply

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "tokens", "spelled"),
    [
        ({"prompt": "a é"}, list("a é".encode()), None),
        ({"prompt": "a é", "return_token_strs": True}, list("a é".encode()), ["a", "Ġ", "Ã", "©"]),
        ({"prompt": "<eos>", "model": "org/alias"}, [256], None),
        ({"prompt": ""}, [], None),
        ({"prompt": "a" * 5000}, [97] * 5000, None),
        ({"messages": [USER]}, list(b"<user>hi<assistant>"), None),
        (
            {"messages": [USER], "continue_final_message": True},
            list(b"<user>hi"),
            None,
        ),
    ],
)
def test_tokenize(
    serve_script: Any, body: dict[str, Any], tokens: list[int], spelled: list[str] | None
) -> None:
    reply = ask(serve_script, TOKENIZE, body)
    assert reply.status_code == 200, reply.text
    assert reply.json() == {
        "count": len(tokens),
        "max_model_len": 128,
        "tokens": tokens,
        "token_strs": spelled,
    }


def test_the_same_ids_are_generated_from(serve_script: Any) -> None:
    bodies = [
        ("/v1/completions", {"prompt": "a <eos> b"}),
        ("/v1/chat/completions", {"messages": [USER, {**USER, "content": "you"}]}),
    ]

    async def run() -> None:
        async with serve_script(say("a")) as served:
            for path, body in bodies:
                tokens = (await served.http.post(TOKENIZE, json=body)).json()["tokens"]
                await served.http.post(path, json=body)
                assert served.engine.requests[-1].prompt_token_ids == tokens

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tokens", "text"), [([], ""), (list("né <eos>".encode()), "né <eos>"), ([97, 256], "a<eos>")]
)
def test_detokenize(serve_script: Any, tokens: list[int], text: str) -> None:
    reply = ask(serve_script, DETOKENIZE, {"tokens": tokens})
    assert (reply.status_code, reply.json()) == (200, {"prompt": text})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TOKENIZE, {}, "prompt"),
        (TOKENIZE, {"prompt": "a", "messages": [USER]}, "prompt"),
        (TOKENIZE, {"prompt": ["a"]}, "prompt"),
        (TOKENIZE, {"prompt": "a" * (2**20 + 1)}, "prompt"),
        (TOKENIZE, {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (TOKENIZE, {"messages": []}, "messages"),
        (TOKENIZE, {"messages": [{"role": "villain", "content": "x"}]}, "messages"),
        (TOKENIZE, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (TOKENIZE, {"messages": [USER], "chat_template": "x"}, "chat_template"),
        (TOKENIZE, {"promt": "a"}, "promt"),
        (DETOKENIZE, {}, "tokens"),
        (DETOKENIZE, {"tokens": [1, 257]}, "tokens[1]"),
        (DETOKENIZE, {"tokens": [-1]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": ["a"]}, "tokens[0]"),
        (DETOKENIZE, {"tokens": [1] * (2**18 + 1)}, "tokens"),
    ],
)
def test_what_they_refuse(serve_script: Any, path: str, body: dict[str, Any], param: str) -> None:
    reply = ask(serve_script, path, body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


def test_another_model_and_options_without_effect(serve_script: Any) -> None:
    assert ask(serve_script, TOKENIZE, {"prompt": "a", "model": "x"}).status_code == 404
    assert ask(serve_script, DETOKENIZE, {"tokens": [1], "model": "x"}).status_code == 404
    body = {"messages": [USER], "chat_template_kwargs": {"x": 1}}
    reply = ask(serve_script, TOKENIZE, body)
    assert reply.headers["x-hookserve-unused"] == "chat_template_kwargs.x"
    reply = ask(serve_script, TOKENIZE, {**body, "user": "u"})
    assert reply.headers["x-hookserve-unused"] == "chat_template_kwargs.x, user"
