"""Texts that must have a form, by a server whose ranks are processes of their own: every rank
chooses the same tokens, and neither right forms nor wrong ones change what others get."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import RunningServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HOT = {"temperature": 1.0, "seed": 7, "max_tokens": 60}
FREE = {"prompt": "free", "max_tokens": 120, "temperature": 0, "stream": True, "ignore_eos": True}
WRONG: list[dict[str, Any]] = [
    {"guided_regex": "(["},
    {"guided_grammar": "root ::= root"},
    {"guided_grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(390))},
    {"guided_json": {"$ref": "#"}},
    {"guided_json": {"const": "x" * 5_000_000}},
    {"guided_json": {"enum": list(range(100_000))}},
    {"guided_choice": ["x"] * 100_000},
]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Any:
    with RunningServer([str(tiny_llama), "-tp", "2"]) as running:
        yield running


def test_every_form_holds_and_says_so(server: RunningServer) -> None:
    forms = {
        "[a-c]{8}": {"guided_regex": "[a-c]{8}"},
        "yes|no": {"structured_outputs": {"choice": ["yes", "no"]}},
        r"x+\.": {"guided_grammar": 'root ::= "x" "x"* "."'},
    }
    for pattern, fields in forms.items():
        body = {"prompt": "a", "n": 3, **HOT, **fields}
        reply = server.post(COMPLETIONS, body).json()
        for choice in reply["choices"]:
            is_whole = re.fullmatch(pattern, choice["text"])
            assert (choice["finish_reason"] == "stop") == bool(is_whole), choice
            assert is_whole or pattern == r"x+\.", choice
        again = server.post(COMPLETIONS, body).json()
        assert [c["text"] for c in again["choices"]] == [c["text"] for c in reply["choices"]]
        assert reply["usage"]["completion_tokens"] == sum(len(c["text"]) for c in reply["choices"])


def test_a_json_object_ends_though_its_model_knows_no_words(server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {"type": "object", "properties": {"a": {"type": "boolean"}},
                           "required": ["a"], "additionalProperties": False},
            },
        },
        **HOT,
        "max_tokens": 200,
        "min_tokens": 150,
    }  # fmt: skip
    (choice,) = server.post(CHAT, body).json()["choices"]
    assert json.loads(choice["message"]["content"])["a"] in (True, False)
    assert choice["finish_reason"] == "stop"


def test_wrong_forms_are_400_and_nobody_else_notices(server: RunningServer) -> None:
    async def stream(client: httpx.AsyncClient) -> str:
        return (await client.post(COMPLETIONS, json=FREE)).text

    async def run() -> None:
        async with server.async_client() as client:
            expected = without_ids(await stream(client))
            beside = [asyncio.create_task(stream(client)) for _ in range(3)]
            started = time.monotonic()
            for fields in WRONG:
                reply = await client.post(COMPLETIONS, json={"prompt": "a", **fields})
                assert reply.status_code in (400, 413), (fields, reply.text)
                assert reply.json()["error"]["message"] and len(reply.content) < 1_000
            assert time.monotonic() - started < 30
            for task in beside:
                assert without_ids(await task) == expected

    before = server.engine_pid
    asyncio.run(run())
    assert server.engine_pid == before
    assert server.status("/health") == 200


def without_ids(events: str) -> str:
    return re.sub(r'"(id|created)":[^,]*,', "", events)
