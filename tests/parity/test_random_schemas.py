"""Random schemas, and a model of random weights that is held to them: what it says is JSON, valid
by the ``jsonschema`` package, to its end, streamed and not."""

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


def make_body(seed: int, made: SchemaMaker) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": str(seed)}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "value", "schema": made.schema, "strict": True},
        },
        "max_tokens": longest(made.schema, made.defs) + 1,
        "temperature": 1.0,
        "seed": seed,
        "stream": seed % 2 == 1,
    }


def read_reply(reply: httpx.Response, is_stream: bool) -> tuple[str, str]:
    """Text and finish reason."""
    assert reply.status_code == 200, reply.text
    if not is_stream:
        (choice,) = reply.json()["choices"]
        return choice["message"]["content"], choice["finish_reason"]
    events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
    choices = [json.loads(event)["choices"][0] for event in events]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


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
        text, reason = read_reply(reply, seed % 2 == 1)
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
