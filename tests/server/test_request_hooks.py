"""``before_request`` and ``admit`` over the whole application: what plugins may change and refuse,
and what becomes of a wrong answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hookserve.engine import engine_client
from hookserve.hookspecs import (
    ApiRequest,
    EngineLoad,
    Principal,
    Refusal,
    RequestHead,
    RequestRecord,
    ResponseDelta,
    hookimpl,
)
from hookserve.server import api_call, response_filter
from scripted_engine import say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RULE = {"role": "system", "content": "Be brief."}


class Before:
    """A plugin that does to each request what it is told to."""

    def __init__(self, change: Callable[[ApiRequest], Any]) -> None:
        self.change = change
        self.seen: list[ApiRequest] = []

    @hookimpl
    def before_request(self, request: ApiRequest) -> Any:
        self.seen.append(request)
        return self.change(request)


class Observer:
    """A plugin that keeps the records of finished requests."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def with_body(request: ApiRequest, **fields: Any) -> ApiRequest:
    return replace(request, body={**request.body, **fields})


def keep(request: ApiRequest) -> None:
    return None


def prompt_of(served: Any, index: int = -1) -> str:
    return bytes(served.engine.requests[index].prompt_token_ids).decode()


def serve(
    serve_script: Any, plugins: Sequence[object], work: Callable[[Any], Any], **options: Any
) -> Any:
    async def run() -> Any:
        async with serve_script(say("hello"), plugins=plugins, **options) as served:
            return await work(served)

    return asyncio.run(run())


# -- before_request --------------------------------------------------------------------------------


def test_each_plugin_gets_what_the_one_before_made_of_the_request(serve_script: Any) -> None:
    class Adds(Before):
        pass

    class Reads(Before):
        pass

    adds = Adds(lambda request: with_body(request, messages=[RULE, *request.body["messages"]]))
    reads = Reads(keep)
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "metadata": {"a": [1, 2]}, "user": "u"}

    async def work(served: Any) -> None:
        reply = await served.http.post(
            CHAT, json=body, headers={"x-tenant": "blue", "x-request-id": "r-1"}
        )
        assert reply.status_code == 200
        assert reply.headers["x-hookserve-unused"] == "metadata, user"
        assert prompt_of(served) == "<system>Be brief.<user>Hi<assistant>"

    serve(serve_script, [adds, reads], work)
    assert adds.seen[0].body == body
    (second,) = reads.seen
    assert second.body == {**body, "messages": [RULE, *messages]}
    assert (second.request_id, second.route, second.model) == ("r-1", CHAT, "m")
    assert second.headers["x-tenant"] == "blue"


def test_a_coroutine_function_is_awaited(serve_script: Any) -> None:
    class Later:
        @hookimpl
        async def before_request(self, request: ApiRequest) -> ApiRequest:
            await asyncio.sleep(0)
            return with_body(request, prompt="changed")

    async def work(served: Any) -> None:
        await served.http.post(COMPLETIONS, json={"prompt": "a"})
        assert prompt_of(served) == "changed"

    serve(serve_script, [Later()], work)


def test_a_body_that_is_changed_in_place_is_a_changed_body(serve_script: Any) -> None:
    def mutate(request: ApiRequest) -> None:
        request.body["messages"].append({"role": "user", "content": "and how"})  # type: ignore[index]

    class Mutates(Before):
        pass

    class Reads(Before):
        pass

    reads = Reads(keep)
    body = {"messages": [{"role": "user", "content": "who"}]}

    async def work(served: Any) -> None:
        await served.http.post(CHAT, json=body)
        assert prompt_of(served) == "<user>who<user>and how<assistant>"

    serve(serve_script, [Mutates(mutate), reads], work)
    assert len(reads.seen[0].body["messages"]) == 2


def test_a_plugin_may_choose_among_the_served_models(serve_script: Any) -> None:
    class Routes(Before):
        pass

    class Zlast(Before):
        pass

    last = Zlast(keep)

    async def work(served: Any) -> None:
        reply = await served.http.post(COMPLETIONS, json={"prompt": "a", "model": "m"})
        assert reply.json()["model"] == "org/alias"

    plugins = [Routes(lambda request: with_body(request, model="org/alias")), last]
    serve(serve_script, plugins, work)
    assert last.seen[0].model == "org/alias"


def test_a_large_body_is_changed_and_checked_too(serve_script: Any) -> None:
    plugin = Before(lambda request: with_body(request, prompt="b"))

    async def work(served: Any) -> None:
        body = {"prompt": "a", "metadata": {"text": "x" * 2 * 2**16}}
        reply = await served.http.post(COMPLETIONS, json=body)
        assert reply.status_code == 200
        assert prompt_of(served) == "b"

    serve(serve_script, [plugin], work)


def test_a_refusal_is_the_reply_and_nobody_else_is_asked(serve_script: Any) -> None:
    class Refuses(Before):
        pass

    class Unasked(Before):
        pass

    refusal = Refusal("once a day", status=429, code="too_often", retry_after_s=2.5)
    refuses, unasked, observer = Refuses(lambda request: refusal), Unasked(keep), Observer()

    async def work(served: Any) -> None:
        for is_streamed in (False, True):
            reply = await served.http.post(COMPLETIONS, json={"prompt": "a", "stream": is_streamed})
            assert reply.status_code == 429
            assert reply.headers["retry-after"] == "3"
            assert reply.json()["error"] == {
                "message": "once a day",
                "type": "rate_limit_error",
                "param": None,
                "code": "too_often",
            }
        assert served.engine.requests == []

    serve(serve_script, [refuses, unasked, observer], work)
    assert unasked.seen == []
    assert [(r.finish_reason, r.error) for r in observer.records] == [("error", "once a day")] * 2


class Text(str):
    """As some libraries have it for text that is safe in HTML."""


def _in_itself(request: ApiRequest) -> ApiRequest:
    body = {**request.body}
    body["metadata"] = body
    return replace(request, body=body)


WRONG: dict[str, Callable[[ApiRequest], Any]] = {
    "no request": lambda request: {"prompt": "a"},
    "unknown field": lambda request: with_body(request, temprature=1),
    "wrong type": lambda request: with_body(request, temperature="hot"),
    "out of range": lambda request: with_body(request, n=0),
    "no prompt": lambda request: with_body(request, prompt=None),
    "no such model": lambda request: with_body(request, model="gpt"),
    "unserved option": lambda request: with_body(request, priority=1),
    "no JSON": lambda request: with_body(request, prompt=object()),
    "no text": lambda request: with_body(request, prompt="\ud800"),
    "bytes": lambda request: with_body(request, prompt=b"abc"),
    "no number": lambda request: with_body(request, temperature=float("nan")),
    "a number without end": lambda request: with_body(request, max_tokens=float("inf")),
    "a body in itself": lambda request: _in_itself(request),
    "an empty stop text": lambda request: with_body(request, stop=["a", ""]),
    "a token that is none": lambda request: with_body(request, stop_token_ids=[10**6]),
    "no mapping": lambda request: replace(request, body=[1]),
    "another id": lambda request: replace(request, request_id="mine"),
    "other headers": lambda request: replace(request, headers={}),
    "a header that is changed in place": lambda request: request.headers.update(a="b"),
    "another route": lambda request: replace(request, route=CHAT),
    "another model": lambda request: replace(request, model="org/alias"),
    "a status that is none": lambda request: Refusal("no", status=200),
    "a status that is no number": lambda request: Refusal("no", status="429"),  # type: ignore[arg-type]
    "a message that is none": lambda request: Refusal(None),  # type: ignore[arg-type]
    "a code that is no text": lambda request: Refusal("no", code=7),  # type: ignore[arg-type]
    "a text of another kind": lambda request: Refusal(Text("no")),
    "a wait before now": lambda request: Refusal("no", retry_after_s=-1),
    "a wait without end": lambda request: Refusal("no", retry_after_s=float("nan")),
}


def test_what_a_plugin_makes_wrong_is_its_own_failure(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, observer = Before(keep), Observer()

    async def work(served: Any) -> None:
        for name, change in WRONG.items():
            plugin.change = change
            caplog.clear()
            reply = await served.http.post(COMPLETIONS, json={"prompt": "a"})
            assert reply.status_code == 500, name
            error = reply.json()["error"]
            assert error["code"] == "plugin_error", name
            assert "object:Before failed in before_request with " in error["message"], name
            (line,) = [r for r in caplog.records if r.levelname == "ERROR"]
            assert "plugin object:Before in before_request: " in line.getMessage(), name
        assert served.engine.requests == []
        plugin.change = keep
        assert (await served.http.post(COMPLETIONS, json={"prompt": "a"})).status_code == 200

    serve(serve_script, [plugin, observer], work)
    assert [r.finish_reason for r in observer.records] == ["error"] * len(WRONG) + ["length"]


def test_the_log_says_what_is_wrong_with_a_changed_body(
    serve_script: Any, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = Before(lambda request: with_body(request, temprature=1))

    async def work(served: Any) -> None:
        reply = await served.http.post(COMPLETIONS, json={"prompt": "a"})
        assert "temprature" not in reply.text

    serve(serve_script, [plugin], work)
    assert "unknown field 'temprature'; did you mean 'temperature'?" in caplog.text


def test_what_the_client_sent_stays_the_clients_fault(serve_script: Any) -> None:
    plugin = Before(keep)

    async def work(served: Any) -> None:
        json_type = {"content-type": "application/json"}
        body = b'{"prompt": "a", "metadata": {"a": 1e400}}'
        reply = await served.http.post(COMPLETIONS, content=body, headers=json_type)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
        body = b'{"prompt": "a", "metadata": ' + b"[" * 2000 + b"]" * 2000 + b"}"
        reply = await served.http.post(COMPLETIONS, content=body, headers=json_type)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")
        reply = await served.http.post(COMPLETIONS, json={"prompt": "a", "n": 0})
        assert reply.status_code == 400

    serve(serve_script, [plugin], work)
    assert plugin.seen == []


# -- admit -----------------------------------------------------------------------------------------


class Limit:
    """A plugin that lets so many requests in at a time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_open = 0
        self.loads: list[EngineLoad] = []

    @hookimpl
    async def admit(self, load: EngineLoad) -> Refusal | None:
        self.loads.append(load)
        self.num_open += 1
        if self.num_open <= self.most:
            return None
        return Refusal("too busy", status=503, code="overloaded", retry_after_s=1)

    @hookimpl
    async def request_finished(self) -> None:
        self.num_open -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_plugin_refuses_what_would_have_to_wait(serve_script: Any) -> None:
    limit = Limit(2)

    async def work(served: Any) -> None:
        served.engine.gate.clear()
        body = {"prompt": "a", "n": 2}
        held = [asyncio.create_task(served.http.post(COMPLETIONS, json=body)) for _ in range(2)]
        await until(lambda: len(served.engine.requests) == 4)
        for is_streamed in (False, True):
            reply = await served.http.post(COMPLETIONS, json={**body, "stream": is_streamed})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["code"] == "overloaded"
        assert len(served.engine.requests) == 4
        served.engine.gate.set()
        assert [(await each).status_code for each in held] == [200, 200]
        await until(lambda: limit.num_open == 0)

    serve(serve_script, [limit], work)
    assert [load.num_unfinished for load in limit.loads] == [0, 2, 4, 4]
    assert limit.loads[-1] == EngineLoad(0, 4, 4, 0.0)


def test_what_admit_counted_up_is_always_counted_down(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit(100)

    async def work(served: Any) -> None:
        monkeypatch.setattr(engine_client, "MAX_UNFINISHED_REQUESTS", 0)
        for is_streamed in (False, True):
            reply = await served.http.post(COMPLETIONS, json={"prompt": "a", "stream": is_streamed})
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_full")
        await until(lambda: limit.num_open == 0)

    serve(serve_script, [limit], work)
    assert len(limit.loads) == 2


@pytest.mark.parametrize("answer", [Refusal("no", status=400), "no", True])
def test_what_is_no_refusal_of_a_full_server_is_the_plugins_failure(
    serve_script: Any, answer: Any
) -> None:
    class Odd:
        @hookimpl
        def admit(self) -> Any:
            return answer

    async def work(served: Any) -> None:
        reply = await served.http.post(COMPLETIONS, json={"prompt": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "plugin_error")
        assert "object:Odd failed in admit" in reply.json()["error"]["message"]
        assert served.engine.requests == []

    serve(serve_script, [Odd()], work)


# -- who sends it ----------------------------------------------------------------------------------


class Tenant:
    """A plugin that knows who sends a request, and asks each hook whether it knows too."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | None]] = []

    @hookimpl
    def authenticate(self, request: RequestHead) -> Principal | None:
        return Principal(request.headers["x-tenant"])

    @hookimpl
    def before_request(self, principal: Principal) -> None:
        self.told.append(("before_request", principal.name))

    @hookimpl
    def admit(self, principal: Principal) -> None:
        self.told.append(("admit", principal.name))

    @hookimpl
    async def metric_labels(self, principal: Principal) -> dict[str, str]:
        self.told.append(("metric_labels", principal.name))
        return {"tenant": principal.name}

    @hookimpl
    def request_finished(self, record: RequestRecord) -> None:
        self.told.append(("request_finished", record.principal))
        self.told.append(("labels", record.labels["tenant"]))


def test_every_hook_knows_who_sends_the_request(serve_script: Any) -> None:
    tenant = Tenant()

    async def work(served: Any) -> None:
        reply = await served.http.post(
            COMPLETIONS, json={"prompt": "a"}, headers={"x-tenant": "blue"}
        )
        assert reply.status_code == 200
        await until(lambda: len(tenant.told) == 5)
        assert [request.principal for request in served.engine.requests] == ["blue"]
        assert 'tenant="blue"' in served.runtime.serving.metrics.text().decode()

    serve(serve_script, [tenant], work)
    assert tenant.told == [
        (name, "blue")
        for name in ("before_request", "admit", "metric_labels", "request_finished", "labels")
    ]


# -- nobody asks -----------------------------------------------------------------------------------


def test_nothing_is_made_for_plugins_that_do_not_ask(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(kind: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            made.append(kind.__name__)
            return kind(*args, **kwargs)

        return make

    monkeypatch.setattr(api_call, "ApiRequest", counted(ApiRequest))
    monkeypatch.setattr(response_filter, "ResponseDelta", counted(ResponseDelta))
    monkeypatch.setattr(api_call, "ResponseFilter", counted(response_filter.ResponseFilter))

    async def work(served: Any) -> None:
        for is_streamed in (False, True):
            body = {"prompt": "a", "stream": is_streamed}
            assert (await served.http.post(COMPLETIONS, json=body)).status_code == 200

    serve(serve_script, [Observer()], work)
    assert made == []
    serve(serve_script, [Before(keep)], work)
    assert made == ["ApiRequest"] * 2
    made.clear()

    class Reads:
        @hookimpl
        def before_response(self, delta: ResponseDelta) -> None:
            return None

    serve(serve_script, [Reads()], work)
    assert made == ["ApiRequest", "ResponseFilter", *["ResponseDelta"] * 5] * 2
