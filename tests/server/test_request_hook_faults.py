"""What a plugin can do wrong in the hooks around a request: that request fails and names it, and
streams beside it, which the same plugin is asked about, say what they would have said."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.hookspecs import ApiRequest, RequestRecord, ResponseDelta, hookimpl
from http_front import exchange, listening, post
from scripted_engine import say

DEADLINE_S = 1.0
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_EVENT = re.compile(rb"data: (\{.*?\})\n")


class Panic(BaseException):
    """As compiled libraries raise them."""


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text can be had")


class Hostile:
    """An answer that raises wherever it is looked at."""

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("hands off")

    __eq__ = __bool__ = __len__ = __iter__ = __getattr__ = __repr__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def raising(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def fault() -> Any:
        raise error

    return fault


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": raising(ZeroDivisionError("by zero")),
    "raises what cannot be told": raising(Untold()),
    "exits": raising(SystemExit(3)),
    "interrupts": raising(KeyboardInterrupt),
    "cancels": raising(asyncio.CancelledError),
    "ends a generator": raising(GeneratorExit),
    "panics": raising(Panic()),
    "answers a text": lambda: "text",
    "answers a class": lambda: ResponseDelta,
    "answers what nobody can look at": Hostile,
}
REQUEST_HOOKS = ("before_request", "admit", "before_response")


class Faulty:
    """A plugin that fails where the body's ``user`` says: ``CLASS/HOOK/FAULT``."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.goes_on = threading.Event()

    def fault_for(self, hook: str, request: ApiRequest) -> str | None:
        own, where, fault = (request.body.get("user") or "//").split("/")
        return fault if (own, where) == (type(self).__name__, hook) else None

    def act(self, hook: str, request: ApiRequest) -> Any:
        fault = self.fault_for(hook, request)
        if fault == "hangs":
            self.hangs.set()
            self.goes_on.wait(60)
        return None if fault in (None, "hangs") else FAULTS[fault]()


class Plain(Faulty):
    @hookimpl
    def before_request(self, request: ApiRequest) -> Any:
        return self.act("before_request", request)

    @hookimpl
    def admit(self, request: ApiRequest) -> Any:
        return self.act("admit", request)

    @hookimpl
    def before_response(self, request: ApiRequest, delta: ResponseDelta) -> Any:
        return self.act("before_response", request)


class Coroutine(Faulty):
    @hookimpl
    async def before_request(self, request: ApiRequest) -> Any:
        return await self.act_later("before_request", request)

    @hookimpl
    async def admit(self, request: ApiRequest) -> Any:
        return await self.act_later("admit", request)

    @hookimpl
    async def before_response(self, request: ApiRequest, delta: ResponseDelta) -> Any:
        return await self.act_later("before_response", request)

    async def act_later(self, hook: str, request: ApiRequest) -> Any:
        await asyncio.sleep(0)
        fault = self.fault_for(hook, request)
        if fault == "hangs":
            await asyncio.sleep(60)
        while fault == "stays, whatever is done to it" and not self.goes_on.is_set():
            with suppress(BaseException):
                await asyncio.sleep(0.01)
        return self.act(hook, request)


# -- streams beside it -----------------------------------------------------------------------------


def speak(request: AddRequest) -> list[EngineCoreOutput]:
    """The alphabet over and over for the streams beside, and a short answer for others."""
    if request.prompt_token_ids == list(b"beside"):
        endless = itertools.islice(itertools.cycle(LETTERS.encode()), 30_000)
        return [EngineCoreOutput(request.request_id, [byte]) for byte in endless]
    return say("hello")(request)


class Beside:
    """A client of a stream that goes on as long as the test."""

    def __init__(self) -> None:
        self.received = b""

    async def read(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(post(json.dumps({"prompt": "beside", "stream": True}).encode()))
            while piece := await reader.read(2**16):
                self.received += piece
        finally:
            writer.close()

    @property
    def text(self) -> str:
        events = [json.loads(event) for event in _EVENT.findall(self.received)]
        assert not any("error" in event for event in events), events[-1]
        return "".join(event["choices"][0]["text"] for event in events)


async def grown(streams: list[Beside]) -> None:
    """Wait until each of them has got more."""
    before = [len(stream.received) for stream in streams]
    async with asyncio.timeout(20):
        while any(len(s.received) < n + 500 for s, n in zip(streams, before, strict=True)):
            await asyncio.sleep(0.001)


@asynccontextmanager
async def three_streams(port: int) -> AsyncIterator[list[Beside]]:
    """Streams that run within the block, and at its end have said nothing but what they say
    alone."""
    streams = [Beside() for _ in range(3)]
    tasks = [asyncio.create_task(stream.read(port)) for stream in streams]
    try:
        await grown(streams)
        yield streams
        await grown(streams)
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        said = stream.text
        assert said == (LETTERS * (len(said) // 26 + 1))[: len(said)]


async def send(port: int, user: str, is_streamed: bool = False) -> bytes:
    body = {"prompt": "a", "user": user, "stream": is_streamed}
    return await exchange(port, post(json.dumps(body).encode()))


def check_failure(reply: bytes, user: str, is_streamed: bool) -> None:
    own, hook, _ = user.split("/")
    begun = is_streamed and reply.startswith(b"HTTP/1.1 200 ")
    assert begun or reply.startswith(b"HTTP/1.1 500 "), (user, reply)
    assert b'"code":"plugin_error"' in reply, user
    assert f"the plugin object:{own} failed in {hook} with ".encode() in reply, user
    assert b"[DONE]" not in reply, user
    assert b"by zero" not in reply, user


def test_a_fault_fails_its_request_and_nothing_beside_it(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with (
            serve_script(speak, plugins=[Plain(), Coroutine()]) as served,
            listening(served.runtime) as port,
            three_streams(port),
        ):
            for own, hook, fault in itertools.product(
                ("Plain", "Coroutine"), REQUEST_HOOKS, FAULTS
            ):
                user = f"{own}/{hook}/{fault}"
                for is_streamed in (False, True):
                    caplog.clear()
                    check_failure(await send(port, user, is_streamed), user, is_streamed)
                    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
                    assert len(lines) == 1, user
                    assert f"plugin object:{own} in {hook}: " in lines[0], user

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    except (SystemExit, KeyboardInterrupt, Panic):
        raise AssertionError("the plugin stopped the event loop") from None


def test_what_hangs_is_given_up_at_its_deadline(serve_script: Any) -> None:
    plain, coroutine = Plain(), Coroutine()

    async def run() -> None:
        async with (
            serve_script(
                speak, plugins=[plain, coroutine], hooks={"front_hook_timeout_s": DEADLINE_S}
            ) as served,
            listening(served.runtime) as port,
            three_streams(port),
        ):
            hanging = ("Plain hangs", "Coroutine hangs", "Coroutine stays, whatever is done to it")
            cases = [
                (f"{own}/{hook}/{fault}", is_streamed)
                for own, _, fault in (each.partition(" ") for each in hanging)
                for hook in REQUEST_HOOKS
                for is_streamed in (False, True)
            ]
            replies = await asyncio.gather(*[send(port, *case) for case in cases])
            for reply, (user, is_streamed) in zip(replies, cases, strict=True):
                check_failure(reply, user, is_streamed)
                assert b"with TimeoutError" in reply, user
            coroutine.goes_on.set()  # its own tasks would never end, nor the event loop

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        plain.goes_on.set()


@pytest.mark.parametrize("hook", REQUEST_HOOKS)
def test_nobody_waits_for_a_call_that_hangs_but_its_own_request(
    serve_script: Any, hook: str
) -> None:
    """Not even others that the same plugin is asked about."""
    plain = Plain()

    async def run() -> None:
        async with (
            serve_script(speak, plugins=[plain], hooks={"front_hook_timeout_s": 30.0}) as served,
            listening(served.runtime) as port,
            three_streams(port) as streams,
        ):
            hanging = asyncio.create_task(send(port, f"Plain/{hook}/hangs"))
            assert await asyncio.to_thread(plain.hangs.wait, 10)
            await grown(streams)
            assert (await send(port, "")).startswith(b"HTTP/1.1 200 ")
            assert not hanging.done()
            plain.goes_on.set()
            assert b'"text":"hello"' in await hanging

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        plain.goes_on.set()


class Waiting:
    """A plugin that takes its time over each piece of text."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.goes_on = asyncio.Event()
        self.ends: list[str | None] = []

    @hookimpl
    async def before_response(self, request: ApiRequest, delta: ResponseDelta) -> None:
        if request.body["prompt"] == "slow":
            self.num_calls += 1
            await self.goes_on.wait()

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        self.ends.append(record.finish_reason)


@pytest.mark.parametrize("stream", [True, False])
def test_nobody_is_asked_about_text_whose_client_is_gone(serve_script: Any, stream: bool) -> None:
    def script(request: AddRequest) -> list[EngineCoreOutput]:
        num_steps = 100_000 if request.prompt_token_ids == list(b"slow") else 20
        plan = [EngineCoreOutput(request.request_id, [97])] * num_steps
        return [*plan, EngineCoreOutput(request.request_id, [97], "length")]

    async def run() -> None:
        plugin = Waiting()
        async with (
            serve_script(script, plugins=[plugin]) as served,
            listening(served.runtime) as port,
        ):
            body = {"prompt": "slow", "stream": stream, "max_tokens": 100}
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(json.dumps(body).encode()))
            while not plugin.num_calls:
                await asyncio.sleep(0.001)
            # Its text waits, of as many steps as this one has.
            assert b'"length"' in await exchange(port, post(b'{"prompt": "beside it"}'))
            writer.close()
            while not served.engine.aborted:
                await asyncio.sleep(0.001)
            plugin.goes_on.set()
            while len(plugin.ends) < 2:
                await asyncio.sleep(0.001)
            assert (plugin.num_calls, plugin.ends) == (1, ["length", "abort"])

    asyncio.run(asyncio.wait_for(run(), 20))


# -- at the end of a request -----------------------------------------------------------------------


class Late(Faulty):
    """The same in the hooks that are asked when the reply is out."""

    def __init__(self) -> None:
        super().__init__()
        self.users: list[str] = []

    @hookimpl
    def metric_labels(self, request: ApiRequest) -> Any:
        self.users.append(request.body.get("user") or "")
        return self.act("metric_labels", request)

    @hookimpl
    def request_finished(self, record: RequestRecord) -> None:
        if record.request_id.startswith("bad"):
            raise SystemExit(3)


@pytest.mark.parametrize("fault", ["raises", "exits", "answers a text", "hangs"])
def test_what_fails_when_the_reply_is_out_is_noticed_by_nobody(
    serve_script: Any, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    late = Late()

    async def run() -> str:
        options = {"front_hook_timeout_s": 0.2 if fault == "hangs" else 30.0}
        async with (
            serve_script(speak, plugins=[late], hooks=options) as served,
            listening(served.runtime) as port,
            three_streams(port),
        ):
            body = json.dumps({"prompt": "a", "user": f"Late/metric_labels/{fault}"}).encode()
            reply = await exchange(port, post(body, "X-Request-Id: bad-1"))
            assert b'"text":"hello"' in reply
            async with asyncio.timeout(10):
                while "failed in request_finished" not in caplog.text:
                    await asyncio.sleep(0.001)
            return str((await served.http.get("/metrics")).text)

    try:
        page = asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        late.goes_on.set()
    # It is counted, without the labels.
    assert 'hookserve_requests_total{finish_reason="length",model_name="m"' in page
    assert "plugin object:Late failed in metric_labels" in caplog.text
    assert ("hook metric_labels is switched off" in caplog.text) is (fault == "hangs")
