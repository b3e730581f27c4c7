"""``n`` and ``best_of`` over a scripted engine: order, usage, streams, ends of single choices."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput, TokenLogprobs
from hookserve.hookspecs import RequestRecord, hookimpl
from scripted_engine import say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


def numbered(request: AddRequest) -> list[EngineCoreOutput]:
    """The prompt and the seed: every sequence says which one it is. Higher seeds are shorter, so
    that the ends come in another order than the starts."""
    seed = request.params.seed or 0
    text = bytes(request.prompt_token_ids).decode() + str(seed) + "." * (9 - seed)
    return say(text)(request)


def chunks_of(text: str) -> list[Any]:
    blocks = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    assert blocks.pop() == "[DONE]"
    return [json.loads(block) for block in blocks]


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_is_at_its_index(serve_script: Any, stream: bool) -> None:
    body = {"prompt": ["a", "bc"], "n": 3, "seed": 4, "max_tokens": 20, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}

    async def run() -> None:
        async with serve_script(numbered) as served:
            reply = await served.http.post(COMPLETIONS, json=body)
            assert [request.params.n for request in served.engine.requests] == [1] * 6
        found: dict[int, str] = defaultdict(str)
        if stream:
            *chunks, last = chunks_of(reply.text)
            for chunk in chunks:
                (choice,) = chunk["choices"]
                found[choice["index"]] += choice["text"]
            usage = last["usage"]
        else:
            usage = reply.json()["usage"]
            assert [c["index"] for c in reply.json()["choices"]] == list(range(6))
            found |= {c["index"]: c["text"] for c in reply.json()["choices"]}
        wanted = [f"{p}{seed}" + "." * (9 - seed) for p in ("a", "bc") for seed in (4, 5, 6)]
        assert [found[index] for index in range(6)] == wanted
        # Each prompt counts once, each sequence for itself.
        assert usage["prompt_tokens"] == 3
        assert usage["completion_tokens"] == sum(len(text) for text in wanted)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_token_ids_belong_to_each_choice(serve_script: Any, stream: bool) -> None:
    body = {"prompt": ["a", "bc"], "n": 2, "return_token_ids": True, "stream": stream}

    async def run() -> None:
        async with serve_script(numbered) as served:
            reply = await served.http.post(COMPLETIONS, json=body)
        if stream:
            choices = [chunk["choices"][0] for chunk in chunks_of(reply.text)]
            choices = [choice for choice in choices if "prompt_token_ids" in choice]
        else:
            choices = reply.json()["choices"]
        ids = {choice["index"]: choice["prompt_token_ids"] for choice in choices}
        assert len(choices) == 4
        assert ids == {0: [97], 1: [97], 2: [98, 99], 3: [98, 99]}

    asyncio.run(run())


def test_a_chat_of_several_choices_streamed_and_whole(serve_script: Any) -> None:
    body = {"messages": HELLO, "n": 3, "seed": 2}

    async def run() -> None:
        async with serve_script(numbered) as served:
            whole = (await served.http.post(CHAT, json=body)).json()
            reply = await served.http.post(CHAT, json={**body, "stream": True})
        texts = [choice["message"]["content"] for choice in whole["choices"]]
        assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
        assert len(set(texts)) == 3
        found: dict[int, list[Any]] = defaultdict(list)
        for chunk in chunks_of(reply.text):
            (choice,) = chunk["choices"]
            found[choice["index"]].append(choice)
        assert sorted(found) == [0, 1, 2]
        for index, choices in found.items():
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in choice["delta"] for choice in choices[1:])
            text = "".join(choice["delta"].get("content", "") for choice in choices)
            assert text == texts[index]
            assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_one_choice_may_end_at_a_stop_text_while_others_go_on(
    serve_script: Any, stream: bool
) -> None:
    body = {"prompt": "p", "n": 3, "seed": 1, "stop": "2", "max_tokens": 20, "stream": stream}

    async def run() -> None:
        async with serve_script(numbered) as served:
            reply = await served.http.post(COMPLETIONS, json=body)
            # When the engine answers this one, it has read all that was sent before.
            await served.http.post(COMPLETIONS, json={"prompt": "q"})
            assert served.engine.aborted == []
            assert served.engine.finished == [(served.engine.requests[1].request_id, "stop")]
        choices = (
            [chunk["choices"][0] for chunk in chunks_of(reply.text)]
            if stream
            else reply.json()["choices"]
        )
        texts: dict[int, str] = defaultdict(str)
        ends = {}
        for choice in choices:
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"]:
                ends[choice["index"]] = choice["finish_reason"]
        assert texts == {0: "p1" + "." * 8, 1: "p", 2: "p3" + "." * 6}
        assert ends == {0: "length", 1: "stop", 2: "length"}

    asyncio.run(run())


def ranked(request: AddRequest) -> list[EngineCoreOutput]:
    """Seeds 1, 2, 3, 4 have the sums -3, -1, -2, -1; the shorter ones are less likely a token."""
    seed = request.params.seed or 0
    assert request.params.logprobs is not None
    text = f"s{seed}" if seed % 2 else f"{seed}"
    total = {1: -3.0, 2: -1.0, 3: -2.0, 4: -1.0}[seed]
    return [
        EngineCoreOutput(
            request.request_id,
            [token],
            "length" if at == len(text) - 1 else None,
            logprobs=[TokenLogprobs([token], [total / len(text)], 1)],
        )
        for at, token in enumerate(text.encode())
    ]


def test_the_likeliest_are_returned_the_likeliest_first(serve_script: Any) -> None:
    async def run() -> None:
        body = {"prompt": ["a", "b"], "n": 3, "best_of": 4, "seed": 1}
        async with serve_script(ranked) as served:
            whole = (await served.http.post(COMPLETIONS, json=body)).json()
            one = (await served.http.post(COMPLETIONS, json={**body, "n": 1})).json()
            assert len(served.engine.requests) == 16
        assert [c["index"] for c in whole["choices"]] == list(range(6))
        assert [c["text"] for c in whole["choices"]] == ["2", "4", "s3"] * 2
        # They were ranked by what the client did not ask to see.
        assert all(choice["logprobs"] is None for choice in whole["choices"])
        assert whole["usage"]["completion_tokens"] == 12
        assert whole["usage"]["prompt_tokens"] == 2
        assert [c["text"] for c in one["choices"]] == ["2", "2"]

    asyncio.run(run())


def test_as_many_as_are_returned_need_no_rank_and_may_stream(serve_script: Any) -> None:
    async def run() -> None:
        body = {"prompt": "a", "n": 2, "best_of": 2, "seed": 8, "stream": True}
        async with serve_script(numbered) as served:
            reply = await served.http.post(COMPLETIONS, json=body)
            assert [r.params.logprobs for r in served.engine.requests] == [None, None]
        assert {c["choices"][0]["index"] for c in chunks_of(reply.text)} == {0, 1}

    asyncio.run(run())


def test_cached_tokens_are_those_before_the_request(serve_script: Any) -> None:
    """The first sequence of a prompt computes it, and the others find it in the cache."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        cached = 1 if request.params.seed == 1 else len(request.prompt_token_ids) - 1
        return [EngineCoreOutput(request.request_id, [97], "length", num_cached_tokens=cached)]

    async def run() -> None:
        body = {"prompt": ["abcd", "efgh"], "n": 3, "seed": 1}
        async with serve_script(script) as served:
            usage = (await served.http.post(COMPLETIONS, json=body)).json()["usage"]
        assert usage["prompt_tokens"] == 8
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}

    asyncio.run(run())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_each_event_says_what_usage_is_by_then_where_that_is_asked_for(
    serve_script: Any, path: str
) -> None:
    body: dict[str, Any] = {"n": 2, "stream": True}
    body |= {"prompt": "ab"} if path == COMPLETIONS else {"messages": HELLO}

    async def run() -> None:
        async with serve_script(say("xy")) as served:
            for last in (False, True):
                options = {"continuous_usage_stats": True, "include_usage": last}
                asked = {**body, "stream_options": options}
                found = chunks_of((await served.http.post(path, json=asked)).text)
                usage = [chunk["usage"] for chunk in found]
                counts = [each["completion_tokens"] for each in usage]
                if (
                    path == CHAT
                ):  # the first event of each choice tells who speaks, a last one how it ends
                    assert sorted({*counts}) == [1, 2, 3, 4]
                else:
                    assert counts == [1, 2, 3, 4] + [4] * last
                assert (found[-1]["choices"] == []) == last
                for each in usage:
                    total = each["prompt_tokens"] + each["completion_tokens"]
                    assert each["total_tokens"] == total
            plain = chunks_of((await served.http.post(path, json=body)).text)
        assert all("usage" not in chunk for chunk in plain)

    asyncio.run(run())


class Observer:
    """A plugin that keeps the records of finished requests."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    @hookimpl
    def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def test_one_record_for_all_choices(serve_script: Any) -> None:
    observer = Observer()

    async def run() -> None:
        async with serve_script(say("hello"), plugins=[observer]) as served:
            await served.http.post(COMPLETIONS, json={"prompt": ["ab", "c"], "n": 4})

    asyncio.run(run())
    (record,) = observer.records
    assert (record.num_prompt_tokens, record.num_completion_tokens) == (3, 40)
    assert record.finish_reason == "length"


def test_a_choice_that_fails_fails_the_request_and_frees_the_others(serve_script: Any) -> None:
    observer = Observer()

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        if request.params.seed == 2:
            return [EngineCoreOutput(request.request_id, [], "error", error="no numbers")]
        return [EngineCoreOutput(request.request_id, [97])] * 1000

    async def run() -> None:
        async with serve_script(script, plugins=[observer]) as served:
            reply = await served.http.post(COMPLETIONS, json={"prompt": "a", "n": 3, "seed": 1})
            assert reply.status_code == 500
            first, _, third = (request.request_id for request in served.engine.requests)
            async with asyncio.timeout(5):
                while not served.engine.aborted:
                    await asyncio.sleep(0.001)
            assert served.engine.aborted == [first, third]

    asyncio.run(run())
    assert [record.finish_reason for record in observer.records] == ["error"]
