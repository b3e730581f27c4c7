"""Random schemas, and a model of random weights that is held to them, as the text's form or as the
parameters of a tool: what it says is JSON, valid by the ``jsonschema`` package, to its end,
streamed and not."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from harness import RunningServer
from random_schemas import CLASSES, SchemaMaker, longest
from reply_fold import events_of, fold

NUM_SCHEMAS = 1000
AT_ONCE = 24
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[RunningServer]:
    args = ["--max-num-seqs", str(AT_ONCE), "--max-model-len", "4096"]
    args += ["--hf-overrides.max_position_embeddings", "4096"]
    args += ["--structured-outputs-config.disable_any_whitespace", "true"]
    with RunningServer([str(tiny_llama), *args]) as running:
        yield running


CALL = len('[{"name":"value","parameters":}]')
"""Characters around the arguments of a call."""


def make_body(seed: int, made: SchemaMaker) -> dict[str, Any]:
    """The schema is that of a tool, which must be called, or of the text, each fourth time."""
    form: dict[str, Any] = {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "value", "schema": made.schema, "strict": True},
        }
    }
    if seed % 4:
        function = {"name": "value", "parameters": made.schema, "strict": True}
        named = {"type": "function", "function": {"name": "value"}}
        form = {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": named if seed % 8 in (1, 2) else "required",
            "parallel_tool_calls": False,
        }
    return {
        "messages": [{"role": "user", "content": str(seed)}],
        **form,
        "max_tokens": longest(made.schema, made.defs) + CALL + 1,
        "temperature": 1.0,
        "seed": seed,
        "stream": seed % 3 == 1,
    }


def read_reply(reply: httpx.Response, is_stream: bool) -> tuple[str, str]:
    """The value's text and how it ended: arguments of one call, or content."""
    assert reply.status_code == 200, reply.text
    (choice,) = (fold(events_of(reply.text)) if is_stream else reply.json())["choices"]
    message = choice["message"]
    if "tool_calls" not in message:
        return message["content"], choice["finish_reason"]
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], message["content"]) == ("value", None)
    reason = choice["finish_reason"]
    return call["function"]["arguments"], "stop" if reason == "tool_calls" else reason


def test_what_a_random_model_says_is_valid(
    server: RunningServer, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    count = round(NUM_SCHEMAS * request.config.getoption("--parity-fraction"))
    made = [SchemaMaker(seed) for seed in range(count)]
    held = Counter(dict.fromkeys(CLASSES, 0))
    for each in made:
        held.update(dict.fromkeys(each.classes, 1))

    async def ask(seed: int, client: httpx.AsyncClient, gate: asyncio.Semaphore) -> str | None:
        """What is wrong with the answer, if anything."""
        each = made[seed]
        async with gate:
            reply = await client.post(PATH, json=make_body(seed, each))
        text, reason = read_reply(reply, seed % 3 == 1)
        try:
            jsonschema.Draft202012Validator(each.schema).validate(json.loads(text))
        except (json.JSONDecodeError, jsonschema.ValidationError) as error:
            return f"schema {seed}: {error!r:.300} in {text!r}"
        return None if reason == "stop" else f"schema {seed} ends by {reason}: {text!r}"

    async def run() -> list[str | None]:
        gate = asyncio.Semaphore(AT_ONCE)
        async with server.async_client() as client:
            return await asyncio.gather(*[ask(seed, client, gate) for seed in range(count)])

    wrong = [said for said in asyncio.run(run()) if said is not None]
    with capsys.disabled():
        shown = ", ".join(f"{name} {number}" for name, number in held.items())
        print(f"\n{count} random schemas with {shown}: {count - len(wrong)} answers are valid")
    assert not wrong, wrong[:3]
    assert min(held.values()) >= count / 20
