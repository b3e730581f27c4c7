"""Clients that go away: the engine is told at once, streamed or not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.hookspecs import RequestRecord, hookimpl


class Observer:
    """A plugin that keeps the records of finished requests."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    @hookimpl
    def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def endless(request: AddRequest) -> list[EngineCoreOutput]:
    return [EngineCoreOutput(request.request_id, [97])] * 100_000


class Client:
    """One request straight into the application, whose client hangs up when it is told to."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = json.dumps(body).encode()
        self._is_read = False
        self.hangs_up = asyncio.Event()
        self.sent: list[Any] = []
        self.got_text = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.got_text.set()

    async def request(self, app: Any) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        await app(scope, self.receive, self.send)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_client_that_leaves_while_it_asks_is_no_error(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serve_script(endless) as served:
            client = Client({"prompt": "a"})
            client.hangs_up.set()

            async def half() -> dict[str, Any]:
                if client.hangs_up.is_set():
                    client.hangs_up.clear()
                    return {"type": "http.request", "body": b'{"pro', "more_body": True}
                return {"type": "http.disconnect"}

            client.receive = half  # type: ignore[method-assign]
            await asyncio.wait_for(client.request(served.runtime.app), 5)
            assert client.sent == []
            assert served.engine.requests == []

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_aborts_its_request(serve_script: Any, stream: bool, n: int) -> None:
    async def run() -> None:
        observer = Observer()
        async with serve_script(endless, plugins=[observer]) as served:
            client = Client({"prompt": ["a", "b"], "n": n, "stream": stream, "max_tokens": 100})
            task = asyncio.create_task(client.request(served.runtime.app))
            await until(lambda: len(served.engine.requests) == 2 * n)
            if stream:
                await client.got_text.wait()
            client.hangs_up.set()
            await asyncio.wait_for(task, 1)
            assert served.runtime.client.num_unfinished_requests == 0
            await until(lambda: len(served.engine.aborted) == 2 * n)
            ids = [request.request_id for request in served.engine.requests]
            assert sorted(served.engine.aborted) == sorted(ids)
            await until(lambda: observer.records)
        (record,) = observer.records
        assert record.finish_reason == "abort"
        assert record.error is None

    asyncio.run(run())


def test_a_client_that_leaves_while_it_waits_is_aborted(serve_script: Any) -> None:
    """No step has run yet: the request waits in the engine's queue."""

    async def run() -> None:
        async with serve_script(endless) as served:
            served.engine.gate.clear()
            client = Client({"prompt": "a", "stream": True})
            task = asyncio.create_task(client.request(served.runtime.app))
            await until(lambda: served.engine.requests)
            client.hangs_up.set()
            await asyncio.wait_for(task, 1)
            await until(lambda: served.engine.aborted)
        assert client.sent == []

    asyncio.run(run())


def test_a_slow_reader_loses_nothing_and_is_bounded() -> None:
    from hookserve.engine.output_sink import MAX_PENDING_OUTPUTS, OutputSink

    async def run() -> None:
        sink = OutputSink()
        count = MAX_PENDING_OUTPUTS + 500
        for token in range(count):
            last = token == count - 1
            sink.put(0, EngineCoreOutput("r", [token], "length" if last else None))
        tokens: list[int] = []
        num_outputs = 0
        while True:
            _, output = await sink.get()
            num_outputs += 1
            tokens += output.new_token_ids
            if output.finish_reason:
                break
        assert tokens == list(range(count))
        assert num_outputs == MAX_PENDING_OUTPUTS

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "reason", "num_tokens"),
    [({"prompt": "abc"}, "length", 2), ({"prompt": "abc", "stop": "a"}, "stop", 1)],
)
def test_a_request_that_ends_is_reported_once(
    serve_script: Any, body: dict[str, Any], reason: str, num_tokens: int
) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        name = request.request_id
        return [EngineCoreOutput(name, [97]), EngineCoreOutput(name, [98], "length")]

    async def run() -> None:
        observer = Observer()
        async with serve_script(script, plugins=[observer]) as served:
            await served.http.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
            await until(lambda: observer.records)
            await asyncio.sleep(0.01)
        (record,) = observer.records
        assert record.request_id == "mine"
        assert record.route == "/v1/completions"
        assert record.model == "m"
        assert record.finish_reason == reason
        assert (record.num_prompt_tokens, record.num_completion_tokens) == (3, num_tokens)
        assert record.error is None
        assert record.ttft_s is not None
        assert 0 < record.ttft_s <= record.latency_s

    asyncio.run(run())
