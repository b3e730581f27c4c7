"""The fields that say how tokens are sampled: what reaches the engine, and what is refused first.

The tokenizer of these tests has a token for each byte, so 97 is "a", and 256 is the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from scripted_engine import say

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
START = {COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": [{"role": "user", "content": "a"}]}}

BOTH_ROUTES: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 100_000}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"min_p": -0.1}, "min_p"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": "0.1"}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"repetition_penalty": 1e-30}, "repetition_penalty"),
    ({"repetition_penalty": 1e30}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"logit_bias": {"AI": -100}}, "logit_bias.AI"),
    ({"logit_bias": {"257": 5}}, "logit_bias.257"),
    ({"logit_bias": {"999999": 5}}, "logit_bias.999999"),
    ({"logit_bias": {"1" * 5000: 5}}, "logit_bias." + "1" * 199 + "…"),
    ({"logit_bias": {"-1": 5}}, "logit_bias.-1"),
    ({"logit_bias": {"05": 5}}, "logit_bias.05"),
    ({"logit_bias": {"٣": 5}}, "logit_bias.٣"),
    ({"logit_bias": {"": 5}}, "logit_bias."),
    ({"logit_bias": {"5": 1e9}}, "logit_bias.5"),
    ({"logit_bias": {"4": 1, "5": -100.5}}, "logit_bias.5"),
    ({"logit_bias": {"5": "1"}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
    ({"allowed_token_ids": [1, 257]}, "allowed_token_ids[1]"),
    ({"allowed_token_ids": list(range(50_000))}, "allowed_token_ids"),
    ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids"),
    ({"allowed_token_ids": [256], "min_tokens": 1}, "allowed_token_ids"),
    ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}, "allowed_token_ids"),
    ({"bad_words": [""]}, "bad_words[0]"),
    ({"bad_words": ["a", "b" * 257]}, "bad_words[1]"),
    ({"bad_words": ["a"] * 257}, "bad_words"),
    ({"bad_words": "a"}, "bad_words"),
    ({"bad_words": [1]}, "bad_words[0]"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": 128}, "min_tokens"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": -2}, "prompt_logprobs"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"priority": 1}, "priority"),
    ({"priority": 2**40}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 7}, "cache_salt"),
    ({"cache_salt": "s" * 1025}, "cache_salt"),
    ({"return_tokens_as_token_ids": 1}, "return_tokens_as_token_ids"),
]
MANY_IDS = {"stop_token_ids": [7] * 1024, "logit_bias": {"5": 1}}
ONE_ROUTE: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"logprobs": 100_000}, "logprobs"),
    (COMPLETIONS, {"logprobs": -1}, "logprobs"),
    (COMPLETIONS, {"logprobs": -2}, "logprobs"),
    (COMPLETIONS, {"logprobs": 1.5}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"top_logprobs": 1}, "top_logprobs"),
    (COMPLETIONS, {"best_of": 0}, "best_of"),
    (COMPLETIONS, {"best_of": 129}, "best_of"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    (COMPLETIONS, {"prompt": ["a"] * 9, "n": 128}, "n"),
    (COMPLETIONS, {"prompt": ["a"] * 9, "best_of": 128}, "best_of"),
    # What each of many sequences would be told.
    (COMPLETIONS, {"prompt": ["a"] * 8, "n": 128, "vllm_xargs": {"x": "y" * 5000}}, "vllm_xargs"),
    (COMPLETIONS, {"prompt": ["a"] * 8, "n": 128, **MANY_IDS}, "stop_token_ids"),
    (CHAT, {"logprobs": 1}, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"best_of": 2}, "best_of"),
]


def test_every_wrong_value_is_refused_by_its_path_before_the_engine_sees_it(
    serve_script: Any,
) -> None:
    cases = [(path, *case) for path in (COMPLETIONS, CHAT) for case in BOTH_ROUTES] + ONE_ROUTE

    async def run() -> list[str]:
        wrong = []
        async with serve_script(say("a")) as served:
            for path, fields, param in cases:
                reply = await served.http.post(path, json={**START[path], **fields})
                error = reply.json().get("error", {})
                found = (reply.status_code, error.get("param"), error.get("type"))
                if found != (400, param, "invalid_request_error"):
                    wrong.append(f"{path} {str(fields)[:80]}: {found}, not {param}")
            assert served.engine.requests == []
            good = await served.http.post(COMPLETIONS, json={"prompt": "a"})
            assert good.status_code == 200
        return wrong

    assert asyncio.run(run()) == []


def request_of(serve_script: Any, fields: dict[str, Any], path: str = COMPLETIONS) -> AddRequest:
    """What the engine gets for a request with these fields."""

    async def run() -> AddRequest:
        async with serve_script(say("a"), priorities=True, max_logprobs=-1) as served:
            reply = await served.http.post(path, json={**START[path], **fields})
            assert reply.status_code == 200, reply.text
            (request,) = served.engine.requests
            assert isinstance(request, AddRequest)
            return request

    return asyncio.run(run())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_every_field_reaches_the_engine(serve_script: Any, path: str) -> None:
    plain = {
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "min_tokens": 3,
    }
    fields = {
        **plain,
        "logit_bias": {"0": -100, "256": 100},
        "allowed_token_ids": [5, 4, 5],
        "bad_words": ["no"],
        "priority": -3,
        "cache_salt": "tenant",
    }
    request = request_of(serve_script, fields, path)
    params = request.params
    assert {name: getattr(params, name) for name in plain} == plain
    assert params.logit_bias == {0: -100.0, 256: 100.0}
    assert params.allowed_token_ids == [5, 4]
    assert params.bad_words == ["no"]
    assert params.bad_words_token_ids == ((110, 111), (32, 110, 111))
    assert (request.priority, request.cache_salt) == (-3, "tenant")
    assert (params.logprobs, params.prompt_logprobs) == (None, None)


@pytest.mark.parametrize(
    ("path", "fields", "logprobs"),
    [
        (COMPLETIONS, {"logprobs": 0}, 0),
        (COMPLETIONS, {"logprobs": 5}, 5),
        (COMPLETIONS, {"logprobs": 257}, 257),
        (COMPLETIONS, {"logprobs": -1}, -1),
        (COMPLETIONS, {"logprobs": False}, None),
        (CHAT, {"logprobs": True}, 0),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 20),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, -1),
        (CHAT, {"top_logprobs": 0}, None),
    ],
)
def test_how_many_logprobs_the_engine_is_asked_for(
    serve_script: Any, path: str, fields: dict[str, Any], logprobs: int | None
) -> None:
    async def run() -> None:
        # The script has none to give: what matters is what it was asked for.
        async with serve_script(say("a"), max_logprobs=-1) as served:
            await served.http.post(path, json={**START[path], **fields})
            (request,) = served.engine.requests
            assert request.params.logprobs == logprobs

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        # 257 tokens of the vocabulary and the token itself, of 32 requests in one step.
        ({"logprobs": -1}, True),
        ({"prompt_logprobs": -1}, True),
        ({"prompt_logprobs": -1, "prompt": ["a" * 120] * 120}, True),
        ({"prompt_logprobs": -1, "prompt": ["a" * 120] * 120, "n": 2}, False),
    ],
)
def test_what_one_message_could_not_hold_is_refused(
    serve_script: Any, fields: dict[str, Any], fits: bool
) -> None:
    async def run() -> None:
        async with serve_script(say("a"), max_logprobs=-1) as served:
            body = {"prompt": "ab", "max_tokens": 1, **fields}
            reply = await served.http.post(COMPLETIONS, json=body)
            assert bool(served.engine.requests) == fits
            if not fits:
                assert reply.status_code == 400
                assert reply.json()["error"]["param"] == "prompt_logprobs"

    asyncio.run(run())


def test_the_models_own_defaults_of_the_new_fields(serve_script: Any) -> None:
    generation = {"repetition_penalty": 1.5, "min_p": 0.1}

    async def run() -> None:
        async with serve_script(say("a"), generation_config=generation) as served:
            for body in ({"prompt": "a"}, {"prompt": "a", "repetition_penalty": 1, "min_p": 0}):
                await served.http.post(COMPLETIONS, json=body)
            first, second = (request.params for request in served.engine.requests)
        assert (first.repetition_penalty, first.min_p) == (1.5, 0.1)
        assert (second.repetition_penalty, second.min_p) == (1.0, 0.0)

    asyncio.run(run())


def test_a_stop_text_before_min_tokens_is_text_like_any_other(serve_script: Any) -> None:
    async def run() -> list[tuple[str, int]]:
        found = []
        async with serve_script(say("aXbXcX")) as served:
            for least in (0, 1, 2, 4):
                body = {"prompt": "a", "stop": "X", "min_tokens": least, "max_tokens": 6}
                reply = (await served.http.post(COMPLETIONS, json=body)).json()
                found.append((reply["choices"][0]["text"], reply["usage"]["completion_tokens"]))
        return found

    assert asyncio.run(run()) == [("a", 2), ("a", 2), ("aXb", 4), ("aXbXc", 6)]


def test_a_wrong_request_among_good_ones_harms_nobody(serve_script: Any) -> None:
    def upper(request: AddRequest) -> list[EngineCoreOutput]:
        return say(bytes(request.prompt_token_ids).decode().upper())(request)

    async def run() -> None:
        async with serve_script(upper) as served:
            bodies = [
                {"prompt": f"text {i}", **(BOTH_ROUTES[i][0] if i % 2 else {})} for i in range(40)
            ]
            replies = await asyncio.gather(
                *(served.http.post(COMPLETIONS, json=body) for body in bodies)
            )
            assert len(served.engine.requests) == 20
        for i, reply in enumerate(replies):
            if i % 2:
                assert reply.status_code == 400
            else:
                assert reply.json()["choices"][0]["text"] == f"TEXT {i}"

    asyncio.run(run())


def test_a_client_can_set_whatever_the_engine_can_do() -> None:
    from hookserve.engine.sampling_params import SamplingParams
    from hookserve.server.wire_common import SamplingFields

    others = {"bad_words_token_ids", "eos_token_ids", "output_kind", "best_of", "logprobs"}
    others.add("extra_args")  # called vllm_xargs
    others.add("form_begins_behind")  # follows from the reasoning parser
    names = set(SamplingParams.__struct_fields__) - others
    assert names <= set(SamplingFields.__struct_fields__)
