"""``echo``: the prompt in front of each choice of a completion, with its log-probabilities, whole
and streamed.

The tokenizer of these tests has a token for each byte, so 97 is "a", and 256 is the end.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput, TokenLogprobs
from hookserve.hookspecs import ApiRequest, ResponseDelta, hookimpl
from hookserve.server.wire_logprobs import LogprobsWriter
from scripted_engine import Script

COMPLETIONS = "/v1/completions"


def entry(token: int, value: float, count: int) -> TokenLogprobs:
    """The best ones are always the letters from "m" on."""
    best = [(109 + i, -0.5 - i) for i in range(count)]
    return TokenLogprobs([token, *(b for b, _ in best)], [value, *(v for _, v in best)], 9)


def scored(text: str, finish_reason: str = "length") -> Script:
    """A token in each step; those of the prompt have -0.25 at each place, and generated ones -2."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        params, tokens = request.params, list(text.encode())
        about_prompt: list[TokenLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            prompt = enumerate(request.prompt_token_ids[1:], start=1)
            about_prompt = [None, *(entry(t, -at / 4, params.prompt_logprobs) for at, t in prompt)]
        return [
            EngineCoreOutput(
                request.request_id,
                [token],
                finish_reason if at == len(tokens) - 1 else None,
                logprobs=None if params.logprobs is None else [entry(token, -2.0, params.logprobs)],
                prompt_logprobs=None if at else about_prompt,
            )
            for at, token in enumerate(tokens)
        ]

    return script


def ask(serve_script: Any, script: Script, plugins: Any = (), **body: Any) -> Any:
    async def run() -> Any:
        async with serve_script(script, plugins=plugins) as served:
            return await served.http.post(COMPLETIONS, json={"echo": True, **body})

    return asyncio.run(run())


def choices_of(serve_script: Any, script: Script, **body: Any) -> list[dict[str, Any]]:
    reply = ask(serve_script, script, **body)
    assert reply.status_code == 200, reply.text
    choices: list[dict[str, Any]] = reply.json()["choices"]
    return choices


def chunks_of(reply: Any) -> list[Any]:
    blocks = [block.removeprefix("data: ") for block in reply.text.split("\n\n") if block]
    assert blocks.pop() == "[DONE]"
    return [json.loads(block)["choices"][0] for block in blocks]


def test_the_prompt_stands_in_front_of_each_choice(serve_script: Any) -> None:
    body: dict[str, Any] = {"prompt": ["ab", "ñ"], "n": 2, "max_tokens": 3, "stop": "a"}
    found = choices_of(serve_script, scored("xyz"), **body)
    assert [choice["text"] for choice in found] == ["abxyz", "abxyz", "ñxyz", "ñxyz"]
    assert all(choice["logprobs"] is None for choice in found)
    # A stop text is looked for in what is generated alone.
    assert [choice["finish_reason"] for choice in found] == ["length"] * 4


def test_log_probabilities_begin_with_those_of_the_prompt(serve_script: Any) -> None:
    fields = {"logprobs": 1, "max_tokens": 2}
    (choice,) = choices_of(serve_script, scored("cd"), prompt="aéb", **fields)
    assert choice["text"] == "aébcd"
    parts = ["bytes:\\xc3", "bytes:\\xa9"]
    assert choice["logprobs"] == {
        "tokens": ["a", *parts, "b", "c", "d"],
        "token_logprobs": [None, -0.25, -0.5, -0.75, -2.0, -2.0],
        "top_logprobs": [
            None,
            {"m": -0.5, parts[0]: -0.25},
            {"m": -0.5, parts[1]: -0.5},
            {"m": -0.5, "b": -0.75},
            {"m": -0.5, "c": -2.0},
            {"m": -0.5, "d": -2.0},
        ],
        "text_offset": [0, 1, 1, 2, 3, 4],
    }
    assert "prompt_logprobs" not in choice


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_long_prompt_is_scored_beside_the_streams(
    serve_script: Any, monkeypatch: Any, is_streamed: bool
) -> None:
    own, threads = LogprobsWriter.echo, set()

    def watched(*args: Any) -> dict[str, Any]:
        threads.add(threading.current_thread())
        return own(*args)

    monkeypatch.setattr(LogprobsWriter, "echo", watched)
    reply = ask(serve_script, scored("c"), prompt="ab", logprobs=1, stream=is_streamed)
    assert reply.status_code == 200, reply.text
    assert threads and threading.current_thread() not in threads


@pytest.mark.parametrize("fields", [{}, {"logprobs": 0, "n": 2}])
@pytest.mark.parametrize("end", ["length", "stop"])
def test_a_prompt_alone_is_scored_and_nothing_is_generated(
    serve_script: Any, fields: dict[str, Any], end: str
) -> None:
    body = {"prompt": ["abc", "de"], "max_tokens": 0, "return_token_ids": True, **fields}
    whole = ask(serve_script, scored("x", end), **body).json()
    n = fields.get("n", 1)
    assert [choice["text"] for choice in whole["choices"]] == ["abc"] * n + ["de"] * n
    for choice in whole["choices"]:
        assert (choice["finish_reason"], choice["token_ids"]) == ("length", [])
        assert "stop_reason" not in choice
    assert whole["usage"]["completion_tokens"] == 0
    assert whole["usage"]["prompt_tokens"] == 5
    if fields:
        shown = whole["choices"][0]["logprobs"]
        assert shown["token_logprobs"] == [None, -0.25, -0.5]
        assert shown["text_offset"] == [0, 1, 2]
    chunks = chunks_of(ask(serve_script, scored("x", end), stream=True, **body))
    assert len(chunks) == 2 * n
    for chunk in chunks:
        chunk.pop("stop_reason", None)
    assert sorted(chunks, key=lambda chunk: chunk["index"]) == whole["choices"]


def test_the_likeliest_of_several_has_the_prompt_too(serve_script: Any) -> None:
    body: dict[str, Any] = {"prompt": ["ab", "c"], "n": 1, "best_of": 2, "logprobs": 0}
    found = choices_of(serve_script, scored("xy"), **body, max_tokens=2)
    assert [choice["text"] for choice in found] == ["abxy", "cxy"]
    assert found[0]["logprobs"]["token_logprobs"] == [None, -0.25, -2.0, -2.0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"max_tokens": 0, "echo": None}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 128}, "max_tokens"),
        ({"echo": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_be_is_refused(serve_script: Any, body: dict[str, Any], param: str) -> None:
    reply = ask(serve_script, scored("x"), **{"prompt": "ab", **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_token_ids_are_written_as_generated_ones_are(serve_script: Any) -> None:
    body: dict[str, Any] = {"prompt": [256, 97, 0xC3, 98], "logprobs": 0, "max_tokens": 1}
    (choice,) = choices_of(serve_script, scored("c"), **body)
    assert choice["text"] == "a\N{REPLACEMENT CHARACTER}bc"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]
    assert choice["logprobs"]["tokens"] == ["<eos>", "a", "bytes:\\xc3", "b", "c"]
    (choice,) = choices_of(serve_script, scored("c"), **body, skip_special_tokens=False)
    assert choice["text"] == "<eos>a\N{REPLACEMENT CHARACTER}bc"
    assert choice["logprobs"]["text_offset"] == [0, 5, 6, 7, 8]


def test_of_a_shortened_prompt_what_is_left_is_shown(serve_script: Any) -> None:
    body: dict[str, Any] = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "logprobs": 0}
    (choice,) = choices_of(serve_script, scored("x"), **body, max_tokens=1)
    assert choice["text"] == "efx"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


def test_both_numbers_of_log_probabilities_are_kept_apart(serve_script: Any) -> None:
    for of_output, of_prompt in ((2, 0), (0, 2)):
        fields = {"logprobs": of_output, "prompt_logprobs": of_prompt, "max_tokens": 1}
        (choice,) = choices_of(serve_script, scored("x"), prompt="ab", **fields)
        assert len(choice["logprobs"]["top_logprobs"][1]) == 1 + of_output
        assert len(choice["prompt_logprobs"][1]) == 1 + of_prompt


def test_a_choice_waits_in_a_stream_for_what_is_known_of_its_prompt(serve_script: Any) -> None:
    """One sequence brings it for all, and another one may be faster."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        outputs = scored("xy")(request)
        if request.params.prompt_logprobs is not None:  # the first one needs two steps more
            outputs = [EngineCoreOutput(request.request_id, []) for _ in range(3)] + outputs
        return outputs

    body: dict[str, Any] = {"prompt": "ab", "n": 2, "logprobs": 0, "max_tokens": 2}
    chunks = chunks_of(ask(serve_script, script, stream=True, **body))
    for index in (0, 1):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in mine) == "abxy"
        assert mine[0]["logprobs"]["token_logprobs"] == [None, -0.25, -2.0]
    assert chunks[0]["index"] == 1


class Shouting:
    """A plugin that sees what is generated, and changes it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def before_response(self, request: ApiRequest, delta: ResponseDelta) -> ResponseDelta:
        self.seen.append(delta.text)
        return ResponseDelta(delta.index, delta.text.upper(), delta.finish_reason)


@pytest.mark.parametrize("stream", [False, True])
def test_plugins_see_what_was_generated_alone(serve_script: Any, stream: bool) -> None:
    plugin = Shouting()
    body: dict[str, Any] = {"prompt": "ab", "max_tokens": 2, "stream": stream}
    reply = ask(serve_script, scored("xy"), plugins=[plugin], **body)
    choices = chunks_of(reply) if stream else reply.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == "abXY"
    assert plugin.seen == ["x", "y"]
