"""``/v1/completions`` over a scripted engine: shapes, order, usage, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from scripted_engine import say


def events_of(text: str) -> list[Any]:
    """The events of a stream; every one must be one ``data:`` line and an empty one."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def upper(request: AddRequest) -> list[EngineCoreOutput]:
    """Answers each prompt with its own upper case, so that a mix-up shows."""
    return say(bytes(request.prompt_token_ids).decode().upper())(request)


def test_a_whole_reply_has_exactly_the_documented_fields(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("hello")) as served:
            reply = await served.http.post(
                "/v1/completions", json={"model": "m", "prompt": "abc", "max_tokens": 5}
            )
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/json"
        body = reply.json()
        assert body.pop("id").startswith("cmpl-")
        assert isinstance(body.pop("created"), int)
        assert body == {
            "object": "text_completion",
            "model": "m",
            "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": 3,
                "completion_tokens": 5,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "texts", "num_prompt"),
    [
        ("ab", ["AB"], 2),
        (["ab", "c", "def"], ["AB", "C", "DEF"], 6),
        ([97, 98], ["AB"], 2),
        ([[97], [98, 99]], ["A", "BC"], 3),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_shape_of_prompt_in_its_order(
    serve_script: Any, prompt: Any, texts: list[str], num_prompt: int, stream: bool
) -> None:
    async def run() -> None:
        body = {"prompt": prompt, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        async with serve_script(upper) as served:
            reply = await served.http.post("/v1/completions", json=body)
        if stream:
            *chunks, usage_chunk, done = events_of(reply.text)
            assert done == "[DONE]"
            found = [""] * len(texts)
            for chunk in chunks:
                assert chunk["usage"] is None
                (choice,) = chunk["choices"]
                found[choice["index"]] += choice["text"]
            assert usage_chunk["choices"] == []
            usage = usage_chunk["usage"]
        else:
            choices = reply.json()["choices"]
            assert [choice["index"] for choice in choices] == list(range(len(texts)))
            found = [choice["text"] for choice in choices]
            usage = reply.json()["usage"]
        assert found == texts
        assert usage["prompt_tokens"] == num_prompt
        assert usage["completion_tokens"] == sum(len(text) for text in texts)

    asyncio.run(run())


def test_each_step_is_an_event_and_none_is_empty(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("añb")) as served:
            reply = await served.http.post(
                "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 4}
            )
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.headers["x-accel-buffering"] == "no"
        *chunks, done = events_of(reply.text)
        assert done == "[DONE]"
        assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
        assert all("usage" not in c for c in chunks)
        choices = [c["choices"][0] for c in chunks]
        # The two bytes of one letter are one event; nothing is sent for the first of them.
        assert [c["text"] for c in choices] == ["a", "ñ", "b"]
        assert [c["finish_reason"] for c in choices] == [None, None, "length"]

    asyncio.run(run())


def test_token_ids_come_with_every_step_where_they_are_asked_for(serve_script: Any) -> None:
    async def run() -> None:
        body = {"prompt": "x", "return_token_ids": True, "max_tokens": 4}
        async with serve_script(say("añ")) as served:
            whole = (await served.http.post("/v1/completions", json=body)).json()
            reply = await served.http.post("/v1/completions", json={**body, "stream": True})
        (choice,) = whole["choices"]
        assert choice["prompt_token_ids"] == [120]
        assert choice["token_ids"] == list("añ".encode())
        chunks = [event["choices"][0] for event in events_of(reply.text)[:-1]]
        assert chunks[0]["prompt_token_ids"] == [120]
        assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
        assert [chunk["token_ids"] for chunk in chunks] == [[97], [0xC3], [0xB1]]
        assert [chunk["text"] for chunk in chunks] == ["a", "", "ñ"]

    asyncio.run(run())


def test_a_stop_in_text_finishes_and_counts_nothing_after_it(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("one two three")) as served:
            reply = await served.http.post(
                "/v1/completions", json={"prompt": "x", "stop": [" two"], "max_tokens": 20}
            )
            # When the engine answers this one, it has read all that was sent before.
            await served.http.post("/v1/completions", json={"prompt": "y"})
            assert served.engine.aborted == []
            assert served.engine.finished == [(served.engine.requests[0].request_id, "stop")]
        body = reply.json()
        assert body["choices"][0] == {
            "index": 0,
            "text": "one",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": " two",
        }
        assert body["usage"]["completion_tokens"] == len("one two")

    asyncio.run(run())


def test_cached_tokens_are_in_usage(serve_script: Any) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        return [
            EngineCoreOutput(request.request_id, [97], num_cached_tokens=2),
            EngineCoreOutput(request.request_id, [98], "length"),
        ]

    async def run() -> None:
        async with serve_script(script) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "abc"})
        assert reply.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}

    asyncio.run(run())


def test_what_the_client_says_reaches_the_engine(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            await served.http.post(
                "/v1/completions",
                json={
                    "prompt": "abc",
                    "temperature": 0.5,
                    "top_p": 0.9,
                    "top_k": 7,
                    "seed": 11,
                    "max_tokens": 9,
                    "stop_token_ids": [5],
                    "ignore_eos": True,
                    "skip_special_tokens": False,
                    "include_stop_str_in_output": True,
                },
            )
            (request,) = served.engine.requests
        params = request.params
        assert request.prompt_token_ids == [97, 98, 99]
        assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 7, 11)
        assert (params.max_tokens, params.stop_token_ids, params.ignore_eos) == (9, [5], True)
        assert params.eos_token_ids == (256,)
        assert not params.skip_special_tokens
        assert params.include_stop_str_in_output

    asyncio.run(run())


def test_the_models_own_defaults_apply_where_the_client_says_nothing(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    generation = {"temperature": 0.25, "top_k": 3, "max_new_tokens": 99, "eos_token_id": [7, 256]}

    async def run() -> None:
        async with serve_script(say("a"), generation_config=generation) as served:
            for body in ({"prompt": "a"}, {"prompt": "a", "temperature": 0, "top_k": None}):
                await served.http.post("/v1/completions", json=body)
            first, second = (request.params for request in served.engine.requests)
        assert (first.temperature, first.top_k, first.top_p) == (0.25, 3, 1.0)
        assert first.max_tokens == 16
        assert first.eos_token_ids == (7, 256)
        assert (second.temperature, second.top_k) == (0, 3)

    asyncio.run(run())
    (told,) = [line for line in caplog.messages if "generation_config" in line]
    assert "'temperature': 0.25" in told and "'top_k': 3" in told


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("eos_token_id", "2"),
        ("eos_token_id", ["</s>", {"a": 1}, True, None, -1, 2**70]),
        ("temperature", "warm"),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_k", 2**70),
    ],
)
def test_a_default_that_cannot_be_is_named_and_left_out(
    serve_script: Any, key: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serve_script(say("a"), generation_config={key: value}) as served:
            reply = await served.http.post("/v1/completions", json={"prompt": "a"})
            assert reply.status_code == 200
            (request,) = served.engine.requests
        params = request.params
        assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
        assert params.eos_token_ids == (256,)

    asyncio.run(run())
    assert any(key in record.getMessage() for record in caplog.records)


def test_requests_with_one_id_get_their_own_answers(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(upper) as served:
            tasks = [
                asyncio.create_task(
                    served.http.post(
                        "/v1/completions",
                        json={"prompt": f"number {i}"},
                        headers={"x-request-id": "same"},
                    )
                )
                for i in range(10)
            ]
            _, unanswered = await asyncio.wait(tasks, timeout=10)
            for task in unanswered:
                task.cancel()
            assert not unanswered
            replies = [task.result() for task in tasks]
            keys = {request.request_id for request in served.engine.requests}
        assert [r.json()["choices"][0]["text"] for r in replies] == [
            f"NUMBER {i}" for i in range(10)
        ]
        assert {r.headers["x-request-id"] for r in replies} == {"same"}
        assert len(keys) == 10
        assert "same" not in keys

    asyncio.run(run())


def test_an_error_of_the_engine_ends_a_stream_without_done(serve_script: Any) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        return [
            EngineCoreOutput(request.request_id, [97]),
            EngineCoreOutput(request.request_id, [], "error", error="the logits are not numbers"),
        ]

    async def run() -> None:
        async with serve_script(script) as served:
            streamed = await served.http.post(
                "/v1/completions", json={"prompt": "x", "stream": True}
            )
            whole = await served.http.post("/v1/completions", json={"prompt": "x"})
        first, last = events_of(streamed.text)
        assert first["choices"][0]["text"] == "a"
        assert last["error"]["message"] == "the logits are not numbers"
        assert whole.status_code == 500
        assert whole.json()["error"]["message"] == "the logits are not numbers"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("is_refusal", "status", "code"), [(True, 400, "invalid_value"), (False, 500, "engine_error")]
)
def test_what_the_engine_refuses_is_the_clients_fault_and_what_it_meets_is_not(
    serve_script: Any, is_refusal: bool, status: int, code: str
) -> None:
    def fail(request: AddRequest) -> list[EngineCoreOutput]:
        return [
            EngineCoreOutput(request.request_id, [97]),
            EngineCoreOutput(
                request.request_id, [], "error", error="No token is left.", is_refusal=is_refusal
            ),
        ]

    async def run() -> None:
        async with serve_script(fail) as served:
            reply = await served.http.post("/v1/completions", json={"model": "m", "prompt": "abc"})
        assert reply.status_code == status
        assert (reply.json()["error"]["code"], reply.json()["error"]["message"]) == (
            code,
            "No token is left.",
        )

    asyncio.run(run())
