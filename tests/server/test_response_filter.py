"""``before_response`` over the whole application: streams and whole replies are one fold of what
plugins let through, and what they take away is not told by another way."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hookserve.engine.messages import AddRequest, EngineCoreOutput, TokenLogprobs
from hookserve.hookspecs import ApiRequest, RequestRecord, ResponseDelta, hookimpl
from scripted_engine import say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def speak(pieces: Sequence[str], stop: bool = False) -> Callable[[AddRequest], Any]:
    """An engine that says one piece in each step, with the log-probabilities that are asked for;
    the token of byte ``b`` has ``-b``."""

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        outputs = []
        for at, piece in enumerate(pieces):
            tokens = list(piece.encode())
            asked = request.params.logprobs is not None
            outputs.append(
                EngineCoreOutput(
                    request.request_id,
                    tokens,
                    "length" if at == len(pieces) - 1 else None,
                    logprobs=[TokenLogprobs([t], [-float(t)], 1) for t in tokens]
                    if asked
                    else None,
                )
            )
        return outputs

    return script


def chunks_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


class Folded:
    """The choices of a reply, whole or streamed, in one shape."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.offsets: dict[int, list[int]] = {}
        self.reasons: dict[int, str] = {}

    def add(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        said = choice.get("delta", choice.get("message"))
        text = choice["text"] if said is None else said.get("content") or ""
        self.texts[index] = self.texts.get(index, "") + text
        self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or [])
        shown = choice["logprobs"] or {}
        entries = shown.get("token_logprobs") or [e["logprob"] for e in shown.get("content") or []]
        self.logprobs.setdefault(index, []).extend(entries)
        self.offsets.setdefault(index, []).extend(shown.get("text_offset") or [])
        if choice["finish_reason"] is not None:
            self.reasons[index] = choice["finish_reason"]


async def fold(served: Any, path: str, body: dict[str, Any], is_streamed: bool) -> dict[str, Any]:
    reply = await served.http.post(path, json={**body, "stream": is_streamed})
    assert reply.status_code == 200, reply.text
    folded = Folded()
    if is_streamed:
        assert reply.text.endswith("data: [DONE]\n\n")
        choices = [c for chunk in chunks_of(reply.text) for c in chunk["choices"]]
    else:
        choices = reply.json()["choices"]
    for choice in choices:
        folded.add(choice)
    return vars(folded)


async def both(served: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a whole reply says; a stream says the same."""
    whole = await fold(served, path, body, False)
    assert await fold(served, path, body, True) == whole
    return whole


# -- plugins that change text ----------------------------------------------------------------------


class Edits:
    """A plugin that does to each piece what it is told to."""

    def __init__(self, edit: Callable[[ApiRequest, ResponseDelta], Any]) -> None:
        self.edit = edit
        self.seen: list[ResponseDelta] = []

    @hookimpl
    async def before_response(self, request: ApiRequest, delta: ResponseDelta) -> Any:
        self.seen.append(delta)
        return self.edit(request, delta)


class Whole(Edits):
    """The same, once for each choice."""

    @hookimpl(buffer=True)
    async def before_response(self, request: ApiRequest, delta: ResponseDelta) -> Any:
        self.seen.append(delta)
        return self.edit(request, delta)


def text(change: Callable[[str], str]) -> Callable[[ApiRequest, ResponseDelta], ResponseDelta]:
    return lambda request, delta: replace(delta, text=change(delta.text))


class Window:
    """A plugin that holds the last characters back until it knows what follows them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: dict[tuple[str, int], str] = {}

    @hookimpl
    def before_response(self, request: ApiRequest, delta: ResponseDelta) -> ResponseDelta:
        key = (request.request_id, delta.index)
        held = self.held.pop(key, "") + delta.text
        out = len(held) if delta.finish_reason is not None else max(0, len(held) - self.size)
        self.held[key] = held[out:]
        return replace(delta, text=held[:out])


def run(
    serve_script: Any,
    script: Any,
    plugins: Sequence[object],
    work: Callable[[Any], Any],
    **options: Any,
) -> Any:
    async def main() -> Any:
        async with serve_script(script, plugins=plugins, **options) as served:
            return await work(served)

    return asyncio.run(main())


def random_pieces(rng: random.Random) -> list[str]:
    letters = "abc.é€😀 "
    said = "".join(rng.choice(letters) for _ in range(rng.randint(1, 12)))
    cuts = sorted(rng.randint(0, len(said)) for _ in range(rng.randint(0, 6)))
    return [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]


def test_a_stream_is_the_fold_of_what_a_whole_reply_says(serve_script: Any) -> None:
    rng = random.Random(7)
    pieces: list[str] = []
    changes = [
        lambda s: s,
        str.upper,
        lambda s: s.replace("a", ""),
        lambda s: s + "!",
        lambda s: "",
        lambda s: s.replace("é", "ee"),
    ]
    first, whole, window = Edits(text(str)), Whole(text(str)), Window(0)

    async def work(served: Any) -> None:
        for at in range(60):
            pieces[:] = random_pieces(rng)
            first.edit, whole.edit = text(rng.choice(changes)), text(rng.choice(changes))
            window.size = rng.randint(0, 3)
            body: dict[str, Any] = {
                "n": rng.randint(1, 3),
                "return_token_ids": True,
                "stop": rng.choice([None, ["b"], ["c.", "a"]]),
                "include_stop_str_in_output": rng.random() < 0.5,
                "max_tokens": 100,
            }
            if at % 2:
                body.update(prompt=["p"] * rng.randint(1, 2), logprobs=1)
                await both(served, COMPLETIONS, body)
            else:
                body.update(messages=[{"role": "user", "content": "p"}], logprobs=True)
                await both(served, CHAT, body)

    for plugins in ([first, window], [first, whole, window]):
        run(serve_script, lambda request: speak(pieces)(request), plugins, work)


def test_the_collected_text_is_given_once_for_each_choice(serve_script: Any) -> None:
    plugin = Whole(text(str.upper))
    body = {"prompt": ["p", "q"], "n": 2, "max_tokens": 10}

    async def work(served: Any) -> None:
        folded = await both(served, COMPLETIONS, body)
        assert folded["texts"] == dict.fromkeys(range(4), "HELLO")
        reply = await served.http.post(COMPLETIONS, json={**body, "stream": True})
        assert [chunk["choices"][0]["text"] for chunk in chunks_of(reply.text)] == ["HELLO"] * 4

    run(serve_script, say("hello"), [plugin], work)
    seen = sorted(plugin.seen, key=lambda delta: delta.index)
    assert seen == [ResponseDelta(i, "hello", "length") for i in range(4) for _ in range(3)]


def test_the_next_plugin_gets_what_was_let_through(serve_script: Any) -> None:
    class Drops(Edits):
        pass

    class Reads(Edits):
        pass

    reads = Reads(lambda request, delta: None)

    async def work(served: Any) -> None:
        folded = await both(served, COMPLETIONS, {"prompt": "p"})
        assert folded["texts"] == {0: "heo"}

    drops = Drops(text(lambda said: said.replace("l", "")))
    run(serve_script, say("hello"), [drops, reads], work)
    assert [(d.text, d.finish_reason) for d in reads.seen[:3]] == [
        ("h", None),
        ("e", None),
        ("o", "length"),
    ]


# -- tokens ----------------------------------------------------------------------------------------


def test_text_that_was_changed_is_not_told_by_its_tokens(serve_script: Any) -> None:
    plugin = Edits(text(lambda said: said.replace("secret", "***")))
    body = {"prompt": "p", "logprobs": 0, "return_token_ids": True}

    async def work(served: Any) -> None:
        folded = await both(served, COMPLETIONS, body)
        assert folded["texts"] == {0: "a ***, b"}
        assert bytes(folded["token_ids"][0]) == b"a , b"
        assert folded["logprobs"] == {0: [-float(byte) for byte in b"a , b"]}
        # Characters of the text that the client got.
        assert folded["offsets"] == {0: [0, 1, 5, 6, 7]}
        whole = (await served.http.post(COMPLETIONS, json=body)).json()
        assert whole["usage"]["completion_tokens"] == 11

    run(serve_script, speak(["a ", "secret", ", b"]), [plugin], work)


def test_tokens_come_with_their_text(serve_script: Any) -> None:
    """Held back and given out unchanged, a text has all its tokens; those of a part of a character
    wait for the rest of it."""
    window, whole = Window(100), Whole(lambda request, delta: None)
    body = {"prompt": "p", "logprobs": 0, "return_token_ids": True}
    told = []

    class Takes(Edits):
        pass

    takes = Takes(text(lambda said: said.replace("é", "")))

    async def work(served: Any) -> None:
        folded = await both(served, COMPLETIONS, body)
        told.append((bytes(folded["token_ids"][0]), folded["offsets"][0]))

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        return [
            EngineCoreOutput(
                request.request_id,
                [byte],
                "length" if at == 3 else None,
                logprobs=[TokenLogprobs([byte], [-1.0], 1)],
            )
            for at, byte in enumerate("aéb".encode())
        ]

    run(serve_script, script, [window, whole], work)
    run(serve_script, script, [takes], work)
    assert told == [("aéb".encode(), [0, 1, 1, 2]), (b"a", [0])]


# -- the end of a choice ---------------------------------------------------------------------------


class Guardrail:
    """A plugin that ends a choice at a word, and keeps how requests ended."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    @hookimpl
    async def before_response(self, delta: ResponseDelta) -> ResponseDelta | None:
        if "!" not in delta.text:
            return None
        return replace(delta, text="", finish_reason="content_filter")

    @hookimpl
    async def request_finished(self, record: RequestRecord) -> None:
        self.records.append(record)


def test_a_plugin_ends_a_choice_and_the_engine_stops_computing_it(serve_script: Any) -> None:
    plugin = Guardrail()

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        if request.params.seed == 2:
            return say("so it is")(request)
        return speak(["a", "b!", *["c"] * 1000])(request)

    async def work(served: Any) -> None:
        body = {"prompt": "p", "n": 2, "seed": 1}
        folded = await both(served, COMPLETIONS, body)
        assert folded["texts"] == {0: "a", 1: "so it is"}
        assert folded["reasons"] == {0: "content_filter", 1: "length"}
        cut = [served.engine.requests[at].request_id for at in (0, 2)]
        assert served.engine.finished == [(request_id, "stop") for request_id in cut]
        assert served.engine.aborted == []
        whole = (await served.http.post(COMPLETIONS, json=body)).json()
        assert whole["usage"]["completion_tokens"] == 3 + 8

    run(serve_script, script, [plugin], work)
    assert [record.finish_reason for record in plugin.records] == ["content_filter"] * 3


def test_a_plugin_may_add_to_the_end_and_say_why_it_is_one(serve_script: Any) -> None:
    def sign(request: ApiRequest, delta: ResponseDelta) -> ResponseDelta | None:
        if delta.finish_reason is None:
            return None
        return replace(delta, text=f"{delta.text} [{delta.finish_reason}]", finish_reason="stop")

    async def work(served: Any) -> None:
        folded = await both(served, COMPLETIONS, {"prompt": "p"})
        assert (folded["texts"][0], folded["reasons"][0]) == ("hello [length]", "stop")

    run(serve_script, say("hello"), [Edits(sign)], work)


def test_the_best_are_chosen_before_plugins_see_them(serve_script: Any) -> None:
    plugin = Edits(text(str.upper))

    def script(request: AddRequest) -> list[EngineCoreOutput]:
        said = f"s{request.params.seed}"
        sums = {1: -3.0, 2: -1.0, 3: -4.0, 4: -2.0}
        logprobs = [TokenLogprobs([t], [sums[request.params.seed] / 2], 1) for t in said.encode()]
        return [
            EngineCoreOutput(request.request_id, list(said.encode()), "length", logprobs=logprobs)
        ]

    async def work(served: Any) -> None:
        body = {"prompt": "p", "n": 2, "best_of": 4, "seed": 1}
        folded = await fold(served, COMPLETIONS, body, False)
        assert folded["texts"] == {0: "S2", 1: "S4"}

    run(serve_script, script, [plugin], work)
    assert plugin.seen == [ResponseDelta(0, "s2", "length"), ResponseDelta(1, "s4", "length")]


# -- wrong answers ---------------------------------------------------------------------------------


class Text(str):
    """As some libraries have it for text that is safe in HTML."""


WRONG: dict[str, Callable[[ResponseDelta], Any]] = {
    "another type": lambda delta: "text",
    "another index": lambda delta: replace(delta, index=1),
    "no text": lambda delta: replace(delta, text=None),
    "half a pair": lambda delta: replace(delta, text="\ud83d"),
    "no end": lambda delta: replace(delta, finish_reason=None) if delta.finish_reason else None,
    "a text of another kind": lambda delta: replace(delta, text=Text(delta.text)),
    "an end of another kind": lambda delta: replace(delta, finish_reason=Text("stop")),
    "an end that nobody knows": lambda delta: replace(delta, finish_reason="bored"),
    "an end that is none": lambda delta: replace(delta, finish_reason=""),
}


def test_a_wrong_answer_is_the_plugins_failure_in_that_request_alone(serve_script: Any) -> None:
    name = ""

    def edit(request: ApiRequest, delta: ResponseDelta) -> Any:
        return WRONG[name](delta) if request.body.get("user") == "unlucky" else None

    async def work(served: Any) -> None:
        nonlocal name
        unlucky = {"prompt": "p", "user": "unlucky", "n": 2}
        for name in WRONG:
            served.engine.requests.clear()
            whole = await served.http.post(COMPLETIONS, json=unlucky)
            error = whole.json()["error"]
            assert (whole.status_code, error["code"]) == (500, "plugin_error"), name
            assert "the plugin object:Edits failed in before_response with " in error["message"]
            streamed = await served.http.post(COMPLETIONS, json={**unlucky, "stream": True})
            assert "[DONE]" not in streamed.text
            assert chunks_of(streamed.text)[-1]["error"] == error, name
            healthy = await served.http.post(COMPLETIONS, json={"prompt": "p"})
            assert healthy.json()["choices"][0]["text"] == "hello", name

    run(serve_script, say("hello"), [Edits(edit)], work)


def test_what_fails_early_frees_the_engine(serve_script: Any) -> None:
    async def work(served: Any) -> None:
        reply = await served.http.post(COMPLETIONS, json={"prompt": "p", "stream": True})
        assert chunks_of(reply.text)[-1]["error"]["code"] == "plugin_error"
        async with asyncio.timeout(5):
            while not served.engine.aborted:
                await asyncio.sleep(0.001)

    script = speak(["a", "b", *["c"] * 1000])
    edit: Any = lambda request, delta: None if delta.text == "a" else 1 / 0  # noqa: E731
    run(serve_script, script, [Edits(edit)], work)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_leaves_while_a_plugin_thinks_is_noticed(
    serve_script: Any, is_streamed: bool
) -> None:
    thinks, gone = asyncio.Event(), asyncio.Event()

    class Slow:
        @hookimpl
        async def before_response(self) -> None:
            thinks.set()
            await gone.wait()

    async def work(served: Any) -> None:
        body = json.dumps({"prompt": "p", "stream": is_streamed}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await thinks.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            return None

        scope = {
            "type": "http",
            "method": "POST",
            "path": COMPLETIONS,
            "raw_path": COMPLETIONS.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        request = asyncio.create_task(served.runtime.app(scope, receive, send))
        async with asyncio.timeout(5):
            while not served.engine.aborted:
                await asyncio.sleep(0.001)
            gone.set()
            await request

    run(serve_script, speak(["a"] * 1000), [Slow()], work)
