"""Several choices, log-probabilities and every sampling field, with a real model over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from harness import RunningServer

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
START = {"prompt": "The old lighthouse keeper", "max_tokens": 8, "temperature": 1.2}


def choices_of(server: RunningServer, body: dict[str, Any], path: str = COMPLETIONS) -> Any:
    reply = server.post(path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


def streamed_choices(server: RunningServer, path: str, body: dict[str, Any]) -> list[Any]:
    with (
        server.client() as client,
        client.stream("POST", path, json={**body, "stream": True}) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line)["choices"][0] for line in lines]


def test_three_choices_with_a_seed_differ_and_repeat(exact_server: RunningServer) -> None:
    body = {**START, "n": 3, "seed": 7}
    texts = [choice["text"] for choice in choices_of(exact_server, body)]
    assert len(set(texts)) == 3
    streamed = [""] * 3
    for choice in streamed_choices(exact_server, COMPLETIONS, body):
        streamed[choice["index"]] += choice["text"]
    assert streamed == texts
    # Each is what its own seed gives alone.
    alone = [choices_of(exact_server, {**START, "seed": 7 + i})[0]["text"] for i in range(3)]
    assert alone == texts


def test_a_prompt_alone_is_scored_as_it_was_when_it_was_generated(
    exact_server: RunningServer,
) -> None:
    """What evaluation harnesses ask for: the text again, with what each of its tokens got."""
    prompts = [START["prompt"], "naïve 🙂👩‍👩‍👧 日本語 e\u0301"]
    fields = {"temperature": 0, "logprobs": 2}
    written = choices_of(exact_server, {**START, **fields, "prompt": prompts, "echo": True})
    again = {**fields, "echo": True, "max_tokens": 0, "return_token_ids": True}
    texts = [choice["text"] for choice in written]
    scored = choices_of(exact_server, {**again, "prompt": texts, "prompt_logprobs": 2})
    num_same = 0
    for prompt, first, second in zip(prompts, written, scored, strict=True):
        assert first["text"].startswith(prompt)
        assert second["text"] == first["text"]
        assert second["token_ids"] == []
        assert second["finish_reason"] == "length"
        shown = second["logprobs"]
        assert shown["token_logprobs"][0] is None
        assert shown["top_logprobs"][0] is None
        assert len(shown["tokens"]) == len(second["prompt_token_ids"])
        known = [entry[str(t)] for t, entry in pairs(second)]
        assert shown["token_logprobs"][1:] == [each["logprob"] for each in known]
        if shown["tokens"] == first["logprobs"]["tokens"]:  # it is read as it was written
            num_same += 1
            values = first["logprobs"]["token_logprobs"][1:]
            assert shown["token_logprobs"][1:] == pytest.approx(values, abs=1e-3)
        for name, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
            if not name.startswith("bytes:"):
                assert second["text"].startswith(name, offset)
    assert num_same > 0
    by_ids = {**again, "prompt": [choice["prompt_token_ids"] for choice in scored]}
    for one, other in zip(scored, choices_of(exact_server, by_ids), strict=True):
        assert other["text"] == one["text"]
        assert other["logprobs"]["text_offset"] == one["logprobs"]["text_offset"]


def pairs(choice: dict[str, Any]) -> list[tuple[int, Any]]:
    """Each token of a prompt but the first, and what ``prompt_logprobs`` tell of it."""
    return list(zip(choice["prompt_token_ids"][1:], choice["prompt_logprobs"][1:], strict=True))


def test_logprobs_are_the_same_streamed_and_whole(exact_server: RunningServer) -> None:
    body = {**START, "temperature": 0, "logprobs": 3}
    (whole,) = choices_of(exact_server, body)
    shown = whole["logprobs"]
    folded: dict[str, list[Any]] = {name: [] for name in shown}
    for choice in streamed_choices(exact_server, COMPLETIONS, body):
        for name, values in (choice["logprobs"] or {}).items():
            folded[name] += values
    assert folded["tokens"] == shown["tokens"]
    assert "".join(folded["tokens"]) == whole["text"]
    assert folded["text_offset"] == shown["text_offset"]
    assert folded["token_logprobs"] == pytest.approx(shown["token_logprobs"], abs=1e-4)
    assert [list(best) for best in folded["top_logprobs"]] == [
        list(best) for best in shown["top_logprobs"]
    ]
    # A greedy choice is the best one everywhere.
    for token, logprob, best in zip(
        shown["tokens"], shown["token_logprobs"], shown["top_logprobs"], strict=True
    ):
        assert max(best, key=best.__getitem__) == token
        assert best[token] == logprob


def test_a_chat_shows_the_bytes_of_what_it_says(exact_server: RunningServer) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 2,
    }
    (choice,) = choices_of(exact_server, body, CHAT)
    content = choice["logprobs"]["content"]
    if choice["finish_reason"] == "stop":
        assert content[-1]["token"] == "<|im_end|>"
        content = content[:-1]
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    assert text == choice["message"]["content"]
    assert "Paris" in text
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)


def test_the_best_is_the_likeliest_in_sum(exact_server: RunningServer) -> None:
    together = {**START, "seed": 11, "logprobs": 0}
    rivals = choices_of(exact_server, {**together, "n": 4})
    sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in rivals]
    ranked = sorted(range(4), key=lambda index: -sums[index])
    body = {**START, "seed": 11, "best_of": 4, "n": 2}
    reply = exact_server.post(COMPLETIONS, body).json()
    assert [c["text"] for c in reply["choices"]] == [rivals[i]["text"] for i in ranked[:2]]
    assert reply["usage"]["completion_tokens"] == 4 * START["max_tokens"]


def test_each_field_changes_what_is_said(exact_server: RunningServer) -> None:
    greedy = {"prompt": "The sky is", "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    (plain,) = choices_of(exact_server, greedy)
    first = plain["token_ids"][0]
    (choice,) = choices_of(exact_server, {**greedy, "logit_bias": {str(first): -100}})
    assert choice["token_ids"][0] != first
    (choice,) = choices_of(exact_server, {**greedy, "bad_words": [plain["text"].split()[0]]})
    assert choice["token_ids"][0] != first
    (choice,) = choices_of(exact_server, {**greedy, "allowed_token_ids": [28, 30]})
    assert set(choice["token_ids"]) <= {28, 30}
    penalties = {"repetition_penalty": 1.9, "presence_penalty": 2, "frequency_penalty": 2}
    body = {**greedy, "prompt": "a a a a a a a", **penalties}
    (choice,) = choices_of(exact_server, body)
    (other,) = choices_of(exact_server, {**body, **dict.fromkeys(penalties)})
    assert choice["token_ids"] != other["token_ids"]
    body = {**greedy, "stop_token_ids": [first]}
    assert choices_of(exact_server, body)[0]["token_ids"] == [first]
    (choice,) = choices_of(exact_server, {**body, "min_tokens": 3})
    assert first not in choice["token_ids"][:3]
    (choice,) = choices_of(exact_server, {**greedy, "temperature": 2, "min_p": 1, "seed": 3})
    assert choice["token_ids"] == plain["token_ids"]


WRONG: list[dict[str, Any]] = [
    {"logit_bias": {"999999": 5}},
    {"logit_bias": {"AI": -100}},
    {"logit_bias": {"5": 1e9}},
    {"stop_token_ids": [9_999_999], "min_tokens": 5},
    {"allowed_token_ids": []},
    {"allowed_token_ids": list(range(50_000))},
    {"bad_words": [""]},
    {"n": 100_000},
    {"logprobs": 100_000},
    {"prompt_logprobs": -1},
    {"repetition_penalty": 0},
]


def test_wrong_requests_among_good_ones_harm_nobody(exact_server: RunningServer) -> None:
    async def run() -> tuple[list[httpx.Response], list[httpx.Response], int]:
        async with exact_server.async_client() as client:

            async def send(fields: dict[str, Any]) -> httpx.Response:
                return await client.post(COMPLETIONS, json={**START, **fields})

            good = [asyncio.create_task(send({"seed": 40 + i})) for i in range(3)]
            wrong = await asyncio.gather(*(send(fields) for fields in WRONG))
            health = await client.get("/health")
            return await asyncio.gather(*good), list(wrong), health.status_code

    good, wrong, health = asyncio.run(run())
    assert [reply.status_code for reply in wrong] == [400] * len(WRONG)
    assert health == 200
    for i, reply in enumerate(good):
        alone = choices_of(exact_server, {**START, "seed": 40 + i})
        assert reply.json()["choices"] == alone
