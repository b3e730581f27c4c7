"""Log-probabilities in both routes over a scripted engine: shapes, bytes, offsets, streams.

The tokenizer of these tests has a token for each byte, so 97 is "a", and 256 is the end.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput, TokenLogprobs
from scripted_engine import Script

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
START = {COMPLETIONS: {"prompt": "xy"}, CHAT: {"messages": [{"role": "user", "content": "a"}]}}


def entry(token: int, at: int, count: int) -> TokenLogprobs:
    """The token is the third best; the best ones are always the letters from "m" on."""
    best = [(109 + i, -0.5 - i) for i in range(count)]
    return TokenLogprobs([token, *(b for b, _ in best)], [-2.25 - at / 4, *(v for _, v in best)], 3)


def likely(text: bytes | str, *, step: int = 1, end: int | None = None) -> Script:
    """``step`` tokens at once, each with what the request asked for."""
    tokens = [*(text.encode() if isinstance(text, str) else text), *([] if end is None else [end])]

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        count = request.params.logprobs
        outputs = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            reason = "length" if end is None else "stop"
            asked = count is not None
            entries = [entry(t, start + i, count or 0) for i, t in enumerate(part)]
            outputs.append(
                EngineCoreOutput(
                    request.request_id,
                    part,
                    reason if start + step >= len(tokens) else None,
                    logprobs=entries if asked else None,
                )
            )
        return outputs

    return script


def ask(serve_script: Any, script: Script, path: str, **fields: Any) -> Any:
    async def run() -> Any:
        async with serve_script(script) as served:
            reply = await served.http.post(path, json={**START[path], **fields})
            assert reply.status_code == 200, reply.text
            return reply

    return asyncio.run(run())


def chunks_of(reply: Any) -> list[Any]:
    blocks = [block.removeprefix("data: ") for block in reply.text.split("\n\n") if block]
    assert blocks.pop() == "[DONE]"
    return [json.loads(block)["choices"][0] for block in blocks]


def test_the_object_of_completions(serve_script: Any) -> None:
    (choice,) = ask(serve_script, likely("ab"), COMPLETIONS, logprobs=2).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-2.25, -2.5],
        "top_logprobs": [{"m": -0.5, "n": -1.5, "a": -2.25}, {"m": -0.5, "n": -1.5, "b": -2.5}],
        "text_offset": [0, 1],
    }


def test_the_object_of_chats(serve_script: Any) -> None:
    fields = {"logprobs": True, "top_logprobs": 2}
    (choice,) = ask(serve_script, likely("a"), CHAT, **fields).json()["choices"]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "a",
                "logprob": -2.25,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "m", "logprob": -0.5, "bytes": [109]},
                    {"token": "n", "logprob": -1.5, "bytes": [110]},
                ],
            }
        ],
        "refusal": None,
    }


def test_without_a_number_of_best_ones_the_token_alone(serve_script: Any) -> None:
    (choice,) = ask(serve_script, likely("a"), COMPLETIONS, logprobs=0).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": -2.25}]
    (choice,) = ask(serve_script, likely("a"), CHAT, logprobs=True).json()["choices"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []


def test_a_token_among_the_best_is_there_once(serve_script: Any) -> None:
    (choice,) = ask(serve_script, likely("m"), COMPLETIONS, logprobs=1).json()["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"m": -0.5}]
    assert choice["logprobs"]["token_logprobs"] == [-2.25]


@pytest.mark.parametrize("fields", [{}, {"logprobs": None}, {"logprobs": False}])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_who_asks_for_none_gets_none(serve_script: Any, path: str, fields: Any) -> None:
    (choice,) = ask(serve_script, likely("ab"), path, **fields).json()["choices"]
    assert choice["logprobs"] is None
    assert all(c["logprobs"] is None for c in chunks_of(ask_stream(serve_script, path, fields)))


def ask_stream(serve_script: Any, path: str, fields: Any) -> Any:
    return ask(serve_script, likely("ab"), path, **fields, stream=True)


def test_a_part_of_a_character_is_written_as_its_bytes(serve_script: Any) -> None:
    text = "a🙂b"
    (choice,) = ask(serve_script, likely(text), COMPLETIONS, logprobs=0).json()["choices"]
    assert choice["text"] == text
    shown = choice["logprobs"]
    parts = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\x99", "bytes:\\x82"]
    assert shown["tokens"] == ["a", *parts, "b"]
    assert shown["text_offset"] == [0, 1, 1, 1, 1, 2]
    assert [list(best) for best in shown["top_logprobs"]] == [[name] for name in shown["tokens"]]

    (choice,) = ask(serve_script, likely(text), CHAT, logprobs=True).json()["choices"]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(each["bytes"]) for each in content).decode() == text
    assert [each["token"] for each in content] == shown["tokens"]


def test_the_end_token_has_an_entry_and_no_place_in_the_text(serve_script: Any) -> None:
    body = ask(serve_script, likely("ab", end=256), COMPLETIONS, logprobs=0).json()
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert choice["logprobs"]["tokens"] == ["a", "b", "<eos>"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("step", [1, 2, 5])
def test_tokens_behind_a_stop_text_have_no_entry(serve_script: Any, step: int) -> None:
    script = likely("one two three", step=step)
    body = ask(serve_script, script, COMPLETIONS, logprobs=0, stop=" tw").json()
    (choice,) = body["choices"]
    assert choice["text"] == "one"
    assert choice["logprobs"]["tokens"] == list("one tw")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert body["usage"]["completion_tokens"] == 6


def test_entries_stream_with_their_tokens_though_their_text_is_held_back(
    serve_script: Any,
) -> None:
    script = likely("aENx")
    fields = {"logprobs": 0, "stop": "END", "stream": True, "max_tokens": 4}
    chunks = chunks_of(ask(serve_script, script, COMPLETIONS, **fields))
    assert [c["text"] for c in chunks] == ["a", "", "", "ENx"]
    assert [c["logprobs"]["tokens"] for c in chunks] == [["a"], ["E"], ["N"], ["x"]]
    assert [c["logprobs"]["text_offset"] for c in chunks] == [[0], [1], [2], [3]]


def test_tokens_may_be_named_by_their_ids(serve_script: Any) -> None:
    fields = {"return_tokens_as_token_ids": True}
    (choice,) = ask(serve_script, likely("a"), COMPLETIONS, logprobs=1, **fields).json()["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:97"]
    assert choice["logprobs"]["top_logprobs"] == [{"token_id:109": -0.5, "token_id:97": -2.25}]
    fields |= {"logprobs": True, "top_logprobs": 1}
    (choice,) = ask(serve_script, likely("a"), CHAT, **fields).json()["choices"]
    (shown,) = choice["logprobs"]["content"]
    assert (shown["token"], shown["bytes"]) == ("token_id:97", [97])
    assert shown["top_logprobs"][0]["token"] == "token_id:109"


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_what_json_cannot_say_is_the_floor(serve_script: Any, value: float) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        entries = [TokenLogprobs([97, 98], [value, value], 1)]
        about_prompt: list[TokenLogprobs | None] = [None]
        about_prompt += entries * (len(request.prompt_token_ids) - 1)
        return [
            EngineCoreOutput(
                request.request_id,
                [97],
                "length",
                logprobs=entries,
                prompt_logprobs=about_prompt,
            )
        ]

    fields = {"logprobs": 1, "prompt_logprobs": 1}
    (choice,) = ask(serve_script, script, COMPLETIONS, **fields).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["logprobs"]["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]
    assert choice["prompt_logprobs"][1]["98"]["logprob"] == -9999.0


def about(request: AddRequest) -> list[EngineCoreOutput]:
    """The last token of the prompt is the fifth best, after "m" and "n"; other ones the best."""
    count = request.params.prompt_logprobs
    known: list[TokenLogprobs | None] = [None]
    for token in request.prompt_token_ids[1:-1]:
        known.append(TokenLogprobs([token, token, 110][: 1 + (count or 0)], [-0.1, -0.1, -3.0], 1))
    known.append(TokenLogprobs([request.prompt_token_ids[-1], 109, 110], [-7.5, -0.5, -1.5], 5))
    return [
        EngineCoreOutput(
            request.request_id, [97], "length", prompt_logprobs=None if count is None else known
        )
    ]


def test_prompt_logprobs_stand_in_each_choice_and_beside_the_chats(serve_script: Any) -> None:
    wanted = [
        None,
        {
            "121": {"logprob": -7.5, "rank": 5, "decoded_token": "y"},
            "109": {"logprob": -0.5, "rank": 1, "decoded_token": "m"},
            "110": {"logprob": -1.5, "rank": 2, "decoded_token": "n"},
        },
    ]
    body = ask(serve_script, about, COMPLETIONS, prompt_logprobs=2, n=2).json()
    assert [choice["prompt_logprobs"] for choice in body["choices"]] == [wanted, wanted]
    assert list(body["choices"][0]["prompt_logprobs"][1]) == ["121", "109", "110"]
    assert all(choice["logprobs"] is None for choice in body["choices"])

    body = ask(serve_script, about, CHAT, prompt_logprobs=2).json()
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    first, second, *_ = body["prompt_logprobs"]
    assert first is None
    # The best token of all is the prompt's own: it is written once, with its rank.
    assert second["117"] == {"logprob": -0.1, "rank": 1, "decoded_token": "u"}
    assert len(second) == 2
    assert "prompt_logprobs" not in ask(serve_script, about, CHAT).json()


def test_one_sequence_of_several_looks_at_the_prompt(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(about) as served:
            body = {"prompt": ["ab", "cd"], "n": 2, "prompt_logprobs": 0}
            await served.http.post(COMPLETIONS, json=body)
            asked = [request.params.prompt_logprobs for request in served.engine.requests]
        assert asked == [0, None, 0, None]

    asyncio.run(run())


@pytest.mark.parametrize("fields", [{"logprobs": 1}, {"prompt_logprobs": 1}])
def test_a_worker_that_leaves_them_out_is_not_covered_up(serve_script: Any, fields: Any) -> None:
    def silent(request: AddRequest) -> list[EngineCoreOutput]:
        return [EngineCoreOutput(request.request_id, [97], "length")]

    async def run() -> None:
        async with serve_script(silent) as served:
            reply = await served.http.post(COMPLETIONS, json={"prompt": "ab", **fields})
        assert reply.status_code == 500
        assert "log-probabilities" in reply.json()["error"]["message"]

    asyncio.run(run())


def test_a_reader_that_is_far_behind_loses_no_entry() -> None:
    from hookserve.engine.output_sink import join

    known: list[TokenLogprobs | None] = [None, entry(7, 0, 1)]
    first = EngineCoreOutput("a", [97], logprobs=[entry(97, 0, 1)], prompt_logprobs=known)
    second = EngineCoreOutput("a", [98], "length", logprobs=[entry(98, 1, 1)])
    joined = join(first, second)
    assert joined.new_token_ids == [97, 98]
    assert joined.logprobs == [entry(97, 0, 1), entry(98, 1, 1)]
    assert joined.prompt_logprobs == known
