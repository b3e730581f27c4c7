"""Every field of both routes acts; and no bad request is more than its own failure.

One real server: a random model whose tokens are words, with a logits processor and priorities.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import pytest

import harness
from harness import RunningServer
from hookserve.server.wire_chat import ChatRequest
from hookserve.server.wire_completions import CompletionRequest
from wordy_llama import BOS, END, character_token, write_wordy_llama

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MAX_RUNNING = 8
LONG = 480
"""Tokens, nearly as many as fit."""
ARGS = [
    *("--served-model-name", "m", "alias"),
    *("--scheduling-policy", "priority", "--max-num-seqs", str(MAX_RUNNING)),
    *("--logits-processors", "processors:RowForcer"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    *("--kv-cache-memory-bytes", str(64 << 20), "--block-size", "4"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_wordy_llama(tmp_path_factory.mktemp("wordy") / "model")
    support = str(Path(harness.__file__).parent)
    with RunningServer([str(model), *ARGS], env={"PYTHONPATH": support}) as server:
        yield server


# -- each field acts -------------------------------------------------------------------------------

BEGIN: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "w1 w2 w3 w4 w5 w6", "max_tokens": 8, "temperature": 0},
    CHAT: {
        "messages": [{"role": "user", "content": "w1 w2 w3 w4 w5 w6"}],
        "max_tokens": 8,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    },
}
View = Callable[[httpx.Response], Any]


def texts(reply: httpx.Response) -> Any:
    """What is said in each choice, thought and called included."""
    value = reply.json()
    said = [choice.get("message") or choice["text"] for choice in value["choices"]]
    for message in said:
        for call in message.get("tool_calls", ()) if isinstance(message, dict) else ():
            assert call.pop("id")
    return said


def whole(reply: httpx.Response) -> Any:
    """The choices, and what stands beside them, without what differs each time."""
    value = json.loads(reply.content, parse_float=lambda digits: round(float(digits), 3))
    return {name: value[name] for name in value if name not in ("id", "created", "usage")}


def usage(reply: httpx.Response) -> Any:
    counts = reply.json()["usage"]
    return counts["prompt_tokens"], counts["completion_tokens"]


def finish(reply: httpx.Response) -> Any:
    return reply.json()["choices"][0]["finish_reason"]


class Pair(NamedTuple):
    """Two requests that differ in the field alone: what the view shows of their replies differs,
    and is the same where the first one is sent again."""

    field: str
    here: Any
    """``None``: the field is absent."""
    there: Any
    view: View = texts
    both: Mapping[str, Any] = MappingProxyType({})
    """Further fields of both."""
    route: str | None = None
    """The one that has the field; ``None``: both."""


DRAW = {"temperature": 2.0, "seed": 7}
SAY_97 = {"logit_bias": {"97": 100}}
SAY_END = {"logit_bias": {str(END): 100}}
TOOL = {"type": "function", "function": {"name": "f"}}
MUST_CALL = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 80}
THINKING = {"chat_template_kwargs": {}}
GO_ON = {"logit_bias": {str(character_token(",")): 100}}
KEEP_3 = {"truncate_prompt_tokens": 3, "return_token_ids": True}
SAY_BOS = {"logit_bias": {str(BOS): 100}, "skip_special_tokens": False}
OTHER = [{"role": "user", "content": "w9 w8 w7"}]

PAIRS = [
    Pair("model", "m", "alias", lambda reply: reply.json()["model"]),
    Pair("n", None, 2, lambda reply: len(reply.json()["choices"])),
    Pair("temperature", 0, 2.0, both={"seed": 7}),
    Pair("top_p", None, 0.001, both=DRAW),
    Pair("top_k", None, 1, both=DRAW),
    Pair("min_p", None, 1.0, both=DRAW),
    Pair("repetition_penalty", None, 1000, both={"max_tokens": 60}),
    Pair("presence_penalty", None, 2, both={"max_tokens": 60}),
    Pair("frequency_penalty", None, 2, both={"max_tokens": 60}),
    Pair("logit_bias", None, {"97": 100}),
    Pair("allowed_token_ids", None, [97, 98]),
    Pair("bad_words", None, ["w97"], both=SAY_97),
    Pair("seed", 1, 2, both={"temperature": 2.0}),
    Pair("stop", None, "w97", both=SAY_97),
    Pair("stop_token_ids", None, [97], finish, SAY_97),
    Pair("ignore_eos", None, True, finish, SAY_END),
    Pair("skip_special_tokens", None, False, both={"logit_bias": {str(BOS): 100}}),
    Pair("spaces_between_special_tokens", None, False, both=SAY_BOS),
    Pair("include_stop_str_in_output", None, True, both={**SAY_97, "stop": "w97"}),
    Pair("max_tokens", 3, 4, usage),
    Pair("min_tokens", None, 5, usage, SAY_END),
    Pair("prompt_logprobs", None, 1, whole),
    Pair("truncate_prompt_tokens", None, 3, usage),
    Pair(
        "truncation_side",
        None,
        "right",
        whole,
        {"truncate_prompt_tokens": 3, "return_token_ids": True},
    ),
    Pair("add_special_tokens", False, True, usage),
    Pair("return_token_ids", None, True, whole),
    Pair("request_id", "a", "b", lambda reply: reply.json()["id"]),
    Pair("stream", None, True, lambda reply: reply.headers["content-type"]),
    Pair(
        "stream_options",
        None,
        {"include_usage": True},
        lambda reply: '"usage"' in reply.text,
        {"stream": True},
    ),
    Pair("vllm_xargs", None, {"by": "RowForcer", "at": 2, "token": 97}),
    Pair("prompt", "w1 w2", "w2 w1", route=COMPLETIONS),
    Pair("echo", None, True, route=COMPLETIONS),
    Pair("best_of", None, 3, usage, route=COMPLETIONS),
    Pair("logprobs", None, 1, whole, route=COMPLETIONS),
    Pair("logprobs", None, True, whole, route=CHAT),
    Pair("top_logprobs", 1, 2, whole, {"logprobs": True}, route=CHAT),
    Pair("return_tokens_as_token_ids", None, True, whole, {"logprobs": 1}, route=COMPLETIONS),
    Pair("return_tokens_as_token_ids", None, True, whole, {"logprobs": True}, route=CHAT),
    Pair("messages", BEGIN[CHAT]["messages"], OTHER, route=CHAT),
    Pair("max_completion_tokens", 3, 4, usage, route=CHAT),
    Pair("add_generation_prompt", None, False, usage, route=CHAT),
    Pair("continue_final_message", None, True, usage, route=CHAT),
    Pair("chat_template_kwargs", {"x": 1}, {"x": 1, "mood": "w3"}, usage, route=CHAT),
    Pair("reasoning_effort", None, "low", usage, route=CHAT),
    Pair("tools", None, [TOOL], usage, route=CHAT),
    Pair("tool_choice", "none", "required", both={"tools": [TOOL], "max_tokens": 80}, route=CHAT),
    Pair("parallel_tool_calls", None, False, both={**MUST_CALL, **GO_ON}, route=CHAT),
    Pair("include_reasoning", None, False, both=THINKING, route=CHAT),
    Pair("structured_outputs", None, {"regex": "no[a-z]*"}),
    Pair("response_format", None, {"type": "json_object"}),
    Pair("guided_json", None, {"type": "boolean"}),
    Pair("guided_regex", None, "yes|no"),
    Pair("guided_choice", None, ["yes", "no"]),
    Pair("guided_grammar", None, 'start: "yes"'),
]
BY_ORDER = {"priority", "cache_salt"}
"""What they change is seen in several requests."""


def test_every_field_has_a_pair() -> None:
    for path, struct in ((COMPLETIONS, CompletionRequest), (CHAT, ChatRequest)):
        paired = {pair.field for pair in PAIRS if pair.route in (None, path)}
        assert set(struct.__struct_fields__) == paired | BY_ORDER, path


async def answer(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, (body, reply.text)
    return reply


def test_each_field_acts(server: RunningServer) -> None:
    async def ask(client: httpx.AsyncClient, path: str, pair: Pair, value: Any) -> Any:
        given = {} if value is None else {pair.field: value}
        return pair.view(await answer(client, path, {**BEGIN[path], **pair.both, **given}))

    async def act(client: httpx.AsyncClient, path: str, pair: Pair) -> str | None:
        here, again, there = await asyncio.gather(
            *(ask(client, path, pair, value) for value in (pair.here, pair.here, pair.there))
        )
        acts = here == again != there
        return None if acts else f"{pair.field} of {path}: {here}, {again}, {there}"

    async def run() -> list[str | None]:
        async with server.async_client() as client:
            return await asyncio.gather(
                *(
                    act(client, path, pair)
                    for pair in PAIRS
                    for path in BEGIN
                    if pair.route in (None, path)
                )
            )

    assert [idle for idle in asyncio.run(run()) if idle is not None] == []


@pytest.mark.parametrize("path", list(BEGIN))
def test_what_is_cached_is_found_under_its_own_salt_alone(server: RunningServer, path: str) -> None:
    def cached(salt: str) -> int:
        reply = server.post(path, {**BEGIN[path], "cache_salt": salt})
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0


@pytest.mark.parametrize("path", list(BEGIN))
def test_the_request_of_the_lower_priority_comes_first(server: RunningServer, path: str) -> None:
    async def order(first: int, second: int) -> list[str]:
        """Who ended first; nobody, where the long ones ended before both were there."""
        ended: list[str] = []

        async def ask(name: str, priority: int) -> None:
            await answer(client, path, {**BEGIN[path], "max_tokens": 1, "priority": priority})
            ended.append(name)

        async with server.async_client() as client:
            # They keep every place, and give none of them up until their client leaves.
            full = {"n": MAX_RUNNING, "max_tokens": LONG, "ignore_eos": True, "priority": -9}
            long = asyncio.create_task(answer(client, path, {**BEGIN[path], **full}))
            await _comes(server, "running", MAX_RUNNING, long)
            early = asyncio.create_task(ask("early", first))
            await _comes(server, "waiting", 1, long)
            late = asyncio.create_task(ask("late", second))
            both_wait = await _comes(server, "waiting", 2, long)
            long.cancel()
            await asyncio.gather(early, late)
        return ended if both_wait else []

    def first_that_counts(first: int, second: int) -> list[str]:
        return next(filter(None, (asyncio.run(order(first, second)) for _ in range(20))), [])

    assert first_that_counts(5, 4) == ["late", "early"]
    assert first_that_counts(4, 5) == ["early", "late"]


async def _comes(
    server: RunningServer, what: str, number: int, meanwhile: asyncio.Task[Any]
) -> bool:
    """Whether so many requests are there while the task runs."""
    while not meanwhile.done():
        if await asyncio.to_thread(server.metric, f"hookserve_num_requests_{what}") == number:
            return True
    return False


# -- bad requests beside good ones -----------------------------------------------------------------

MAX_ANSWER_BYTES, MAX_ANSWER_S = 1000, 5.0
JSON = {"content-type": "application/json"}


class Bad(NamedTuple):
    path: str
    body: Any
    """JSON, or the bytes themselves."""
    param: str | None = None
    status: int = 400
    method: str = "POST"
    headers: Mapping[str, str] = MappingProxyType(JSON)


def fields(path: str, **cases: list[Any]) -> list[Bad]:
    """Wrong values by field; a pair with a text is a value and the path of what is wrong in it."""
    return [
        Bad(path, {**BEGIN[path], name: case[0]}, case[1])
        if isinstance(case, tuple)
        else Bad(path, {**BEGIN[path], name: case}, name)
        for name, cases_of_one in cases.items()
        for case in cases_of_one
    ]


def message(**given: Any) -> dict[str, Any]:
    return {**BEGIN[CHAT], "messages": [given]}


def part(**given: Any) -> dict[str, Any]:
    return message(role="user", content=[given])


DEEP = b"[" * 5000 + b"]" * 5000
BOTH_ROUTES: dict[str, list[Any]] = {
    "n": [0, 129, 1.5, True, "2"],
    "temperature": [-1, 2.5, "hot", []],
    "top_p": [0, 1.1],
    "top_k": [-2],
    "min_p": [2],
    "repetition_penalty": [0, 1e30],
    "presence_penalty": [3],
    "logit_bias": [({"999999": 5}, "logit_bias.999999"), ({"AI": -100}, "logit_bias.AI")],
    "allowed_token_ids": [[], ([-1], "allowed_token_ids[0]"), list(range(50_000))],
    "stop_token_ids": [([9_999_999], "stop_token_ids[0]")],
    "bad_words": [([""], "bad_words[0]"), "w1"],
    "stop": ["", (["x", ""], "stop[1]"), ["x"] * 17, "x" * 5000],
    "seed": [2**64],
    "max_tokens": [-1, 10_000, "ten"],
    "min_tokens": [9],
    "prompt_logprobs": [100_000, -1],
    "truncate_prompt_tokens": [0, 10_000],
    "priority": [2**40],
    "cache_salt": [""],
    "request_id": ["a b", "x" * 10_000],
    "stream": ["yes"],
    "stream_options": [{}],
    "vllm_xargs": [{"x": "y" * 70_000}, json.loads("[" * 40 + "]" * 40)],
    # Names of code to import, and fields that nobody knows.
    "logits_processors": [["os.system"], [{"qualname": "os.system", "args": ["id"]}]],
    "temperture": [0],
    "max_tokns": [5],
    "use_beam_search": [True],
    # Forms that nothing can have, or that nobody could look at.
    "response_format": [
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
    ],
    "structured_outputs": [
        ({"regex": "(" * 60_000}, "structured_outputs.regex"),
        ({"colour": 1}, "structured_outputs.colour"),
    ],
    "guided_regex": ["foo("],
    "guided_choice": [[]],
    "guided_grammar": ["start: nothing"],
    "guided_json": [{"$ref": "#"}, {"type": "thing"}],
}
BAD = [
    *fields(COMPLETIONS, **BOTH_ROUTES)[::2],
    *fields(CHAT, **BOTH_ROUTES)[1::2],
    *fields(
        COMPLETIONS,
        prompt=[None, [], {"a": 1}, [""] * 1025, "w1 " * 500_000, [7] * 600],
        logprobs=[100_000, True],
        best_of=[0, 129],
        suffix=["x"],
    ),
    *fields(
        COMPLETIONS,
        prompt=[
            ([260], "prompt[0]"),
            ([-1], "prompt[0]"),
            ([2**62], "prompt[0]"),
            ([1.5], "prompt[0]"),
            ([True], "prompt[0]"),
            ([[1], "a"], "prompt[1]"),
            ([[1], [2, 260]], "prompt[1][1]"),
            ([[]], "prompt[0]"),
        ],
    ),
    Bad(COMPLETIONS, {**BEGIN[COMPLETIONS], "prompt": ["w1"] * 9, "n": 128}, "n"),
    *fields(
        CHAT,
        messages=[None, [], {}, "hi", ([1], "messages[0]")],
        top_logprobs=[2, 100_000],
        logprobs=["yes"],
        chat_template=["{% for a in range(2000) %}{% endfor %}"],
        chat_template_kwargs=[
            ({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
            ({"tokenize": True}, "chat_template_kwargs.tokenize"),
            ({"x\r\nevil: 1": 1}, "chat_template_kwargs.x\r\nevil: 1"),
        ],
        reasoning_effort=["much"],
        tools=[
            ([{"type": "function"}], "tools[0].function"),
            ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
            ([TOOL, TOOL], "tools[1].function.name"),
            [TOOL] * 600,
        ],
        tool_choice=["sometimes", "required"],
        parallel_tool_calls=["yes"],
        echo=[True],
    ),
    Bad(CHAT, message(content="w1"), "messages[0].role"),
    Bad(CHAT, message(role="user"), "messages[0].content"),
    Bad(CHAT, message(role="user", content=3), "messages[0].content"),
    Bad(CHAT, message(role="user", content="w1", colour=1), "messages[0].colour"),
    Bad(CHAT, message(role="x" * 5000, content="w1"), "messages[0].role"),
    Bad(CHAT, message(role="user", content="w1 " * 500_000), "messages"),
    Bad(CHAT, part(type="image_url", image_url={"url": "x"}), "messages[0].content[0].type"),
    Bad(CHAT, part(type="text"), "messages[0].content[0].text"),
    Bad(CHAT, {**BEGIN[CHAT], "messages": [{"role": "user", "content": "w1"}] * 9000}, "messages"),
    # Bodies that are none.
    *(
        Bad(path, body)
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize")
        for body in (b"", b"{", b"[]", b"null", DEEP, b'{"user": ' + DEEP, b'{"model": "\xff"}')
    ),
    *(
        Bad(COMPLETIONS, b'{"prompt": ' + text + b"}", param)
        for text, param in (
            (rb'"\ud83d"', None),
            (rb'"w1", "stop": "\ud83d"', None),
            (b'"w1", "user": "\xff"', None),
            (b'"w1", "temperature": NaN', None),
            (b'"w1", "temperature": 1e999', "temperature"),
            (b'"w1", "seed": 1' + b"0" * 5000, "seed"),
            (b'"w1", "max_tokens": ' + DEEP, None),
            (b'"w1", "vllm_xargs": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000, None),
            (b'"w1", "guided_json": ' + b'{"items":' * 400 + b"{}" + b"}" * 400, "guided_json"),
            (b'"w1", "guided_json": ' + b'{"items":' * 5000 + b"{}" + b"}" * 5000, None),
            (b'"w1", "metadata": [' + b"{}," * 70_000 + b"{}]", None),
        )
    ),
    Bad("/tokenize", {"prompt": ["a"]}, "prompt"),
    Bad("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
    Bad("/detokenize", {"tokens": [999_999]}, "tokens[0]"),
    # What is not there, and ways that are not spoken.
    Bad(COMPLETIONS, {"prompt": "w1", "model": "gpt-9"}, "model", 404),
    Bad(COMPLETIONS, {"prompt": "w1", "model": "x" * 100_000}, "model", 404),
    Bad("/v1/nothing", {}, None, 404),
    Bad("/v1/models/" + "x" * 5000, b"", "model", 404, "GET"),
    Bad("/invocations", {}, None, 404),
    Bad(COMPLETIONS, b"", None, 405, "GET"),
    Bad("/v1/models", {}, None, 405),
    Bad("/tokenize", b"", None, 405, "DELETE"),
    Bad(CHAT, b" " * (40 << 20), None, 413),
    Bad(COMPLETIONS, b"prompt=w1", None, 415, headers={"content-type": "text/plain"}),
    Bad(CHAT, b"{}", None, 415, headers={**JSON, "content-encoding": "gzip"}),
]


def wrong_with(bad: Bad, reply: httpx.Response, elapsed_s: float) -> str | None:
    """What is not as it must be in the answer to a bad request."""
    if reply.status_code != bad.status:
        return f"status {reply.status_code}: {reply.text[:300]}"
    if reply.headers["content-type"] != "application/json":
        return f"content-type {reply.headers['content-type']}"
    envelope = reply.json()
    if envelope.keys() != {"error"} or list(envelope["error"]) != [
        *("message", "type", "param", "code")
    ]:
        return f"envelope {reply.text[:300]}"
    error = envelope["error"]
    if error["param"] != bad.param and not (error["param"] or "").startswith(f"{bad.param}["):
        return f"param {error['param']!r}: {error['message']}"
    if not error["message"] or not error["code"] or "Traceback" in reply.text:
        return f"error {error}"
    if len(reply.content) > MAX_ANSWER_BYTES or elapsed_s > MAX_ANSWER_S:
        return f"{len(reply.content)} bytes after {elapsed_s:.1f} s"
    return None


async def send(client: httpx.AsyncClient, bad: Bad) -> str | None:
    body = bad.body if isinstance(bad.body, bytes) else json.dumps(bad.body).encode()
    start = time.monotonic()
    reply = await client.request(bad.method, bad.path, content=body, headers=dict(bad.headers))
    wrong = wrong_with(bad, reply, time.monotonic() - start)
    return None if wrong is None else f"{bad.path} {str(bad.body)[:100]}: {wrong}"


async def streamed(client: httpx.AsyncClient, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    async with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        lines = [line[6:] async for line in reply.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])


def test_bad_requests_beside_three_streams(server: RunningServer) -> None:
    assert len(BAD) >= 80
    prompts = ["w1 w2", "w3 w4 w5", "w6"]

    async def run() -> None:
        async with server.async_client() as client:
            alone = [await streamed(client, prompt) for prompt in prompts]
            is_over = asyncio.Event()

            async def neighbour(prompt: str) -> set[str]:
                said = set()
                while not is_over.is_set():
                    said.add(await streamed(client, prompt))
                return said

            async with asyncio.TaskGroup() as group:
                neighbours = [group.create_task(neighbour(prompt)) for prompt in prompts]
                wrong = [await send(client, bad) for bad in BAD]
                is_over.set()
            found = [each for each in wrong if each is not None]
            assert not found, "\n".join(found)
            assert [task.result() for task in neighbours] == [{text} for text in alone]

    engine = server.engine_pid
    asyncio.run(run())
    assert server.engine_pid == engine
    assert server.status("/readyz") == 200
