"""What wrong requests get: the right status, the one envelope, the field's path; and the server
goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hookserve.server.errors import cut
from scripted_engine import say

PATH = "/v1/completions"


def error_of(reply: Any) -> dict[str, Any]:
    """The error of a reply, after checking that it is in the envelope and tells no secrets."""
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert len(reply.text) < 1000
    assert "Traceback" not in reply.text
    assert "/nowhere" not in reply.text
    return dict(body["error"])


def post(serve_script: Any, content: bytes, path: str = PATH, **options: Any) -> Any:
    async def run() -> Any:
        async with serve_script(say("a"), **options) as served:
            headers = {"content-type": "application/json"}
            reply = await served.http.post(path, content=content, headers=headers)
            after = await served.http.post(PATH, json={"prompt": "a"})
            assert after.status_code == 200
            assert len(served.engine.requests) == 1 or reply.status_code == 200
            return reply

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 128}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [257]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": [257]}, "prompt[0]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [[1], [2, 2**70]]}, "prompt[1][1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"temperture": 0}, "temperture"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": ["x", "x" * 1025]}, "stop[1]"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"max_tokens": 1e300}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"stop_token_ids": [5.0]}, "stop_token_ids[0]"),
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 129}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "prompt": "a" * (2**20 + 1)}, "prompt"),
        ({"truncate_prompt_tokens": 5, "prompt": [7] * (2**18 + 1)}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_field_is_refused_by_its_path(
    serve_script: Any, fields: dict[str, Any], param: str
) -> None:
    reply = post(serve_script, json.dumps({"prompt": "a", **fields}).encode())
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0, "frequency_penalty": 0.0, "n": 1, "best_of": 1, "priority": 0},
        {"logprobs": None, "echo": False, "logit_bias": None, "suffix": None, "cache_salt": None},
        {"logprobs": False, "response_format": {"type": "text"}, "min_tokens": 0},
        {"logit_bias": {}, "bad_words": [], "allowed_token_ids": None, "prompt_logprobs": None},
        {"stop": None, "max_tokens": None, "seed": None, "stream": None, "stream_options": None},
        {"max_tokens": 127, "stop": "x", "top_k": -1},
        {"max_tokens": 5.0, "n": 1e0, "top_k": 2.0, "seed": -3.0, "temperature": 1},
        {"truncate_prompt_tokens": None, "truncation_side": None, "request_id": None},
        {"add_special_tokens": None, "use_beam_search": False, "prediction": None},
        {"prompt": "a\0b", "stop": "\0"},
        {"stop": "x" * 1024, "request_id": "x" * 128, "max_tokens": 7},
    ],
)
def test_values_that_change_nothing_are_accepted(serve_script: Any, fields: dict[str, Any]) -> None:
    reply = post(serve_script, json.dumps({"prompt": "a", **fields}).encode())
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
        (b'{"prompt": "a", "n": 1e999}', "n"),
        (b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}", "seed"),
        (b'{"prompt": [1' + b"0" * 5000 + b"]}", "prompt[0]"),
        (b'{"prompt": "a", "max_tokens": ' + b"[" * 700 + b"]" * 700 + b"}", "max_tokens"),
        (b'{"prompt": "a", "max_tokens": "x", "user": 1e999}', "max_tokens"),
    ],
)
def test_a_value_that_cannot_be_shown_is_refused_by_its_path(
    serve_script: Any, content: bytes, param: str
) -> None:
    reply = post(serve_script, content)
    assert reply.status_code == 400
    assert error_of(reply)["param"] == param


def test_only_the_beginning_of_a_long_value_is_written_out() -> None:
    num_written = 0

    class Item:
        def __repr__(self) -> str:
            nonlocal num_written
            num_written += 1
            return "7"

    text = cut([Item()] * 100_000)
    assert text.startswith("[7, 7, 7, ")
    assert len(text) == 200
    assert num_written < 1000


def test_a_field_far_inside_names_the_values_it_knows(serve_script: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "x"}]}
    content = json.dumps({"messages": [message]}).encode()
    error = error_of(post(serve_script, content, "/v1/chat/completions"))
    path = "messages[0].tool_calls[0].type"
    assert error["message"] == f"{path}: expected one of 'function' (given: x)"


def test_an_unknown_field_names_the_nearest(serve_script: Any) -> None:
    error = error_of(post(serve_script, b'{"prompt": "a", "temperture": 0}'))
    assert "temperature" in error["message"]
    assert error["code"] == "unknown_field"


def test_fields_without_meaning_are_named_in_a_header(serve_script: Any) -> None:
    reply = post(serve_script, b'{"prompt": "a", "user": "u", "metadata": {"a": "b"}}')
    assert reply.status_code == 200
    assert reply.headers["x-hookserve-unused"] == "metadata, user"
    assert "x-hookserve-unused" not in post(serve_script, b'{"prompt": "a"}').headers


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b'{"prompt": "a"} x',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "a", "user": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt": "a", "logit_bias": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
        b"[]",
        b'"text"',
        b"null",
    ],
)
def test_a_body_that_is_no_object_is_a_400(serve_script: Any, content: bytes) -> None:
    reply = post(serve_script, content)
    assert reply.status_code == 400
    error_of(reply)


@pytest.mark.parametrize(
    "fields",
    [{"x" * 5000: 1}, {"truncation_side": "x" * 5000}, {"model": "x" * 5000}, {"seed": "x" * 5000}],
    ids=["name", "enumeration", "model", "number"],
)
def test_a_long_value_is_cut(serve_script: Any, fields: dict[str, Any]) -> None:
    reply = post(serve_script, json.dumps({"prompt": "a", **fields}).encode())
    assert reply.status_code in (400, 404)
    assert len(error_of(reply)["message"]) < 300


def test_the_context_is_exceeded_by_one(serve_script: Any) -> None:
    fits = {"prompt": "a" * 100, "max_tokens": 28}
    assert post(serve_script, json.dumps(fits).encode()).status_code == 200
    error = error_of(post(serve_script, json.dumps({**fits, "max_tokens": 29}).encode()))
    assert error["code"] == "context_length_exceeded"
    assert "100 prompt tokens" in error["message"]
    assert "129" in error["message"]
    assert "128" in error["message"]


CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "a" * 128}, "prompt"),
        ("/v1/completions", {"prompt": "a" * 128, "max_tokens": 1}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "a" * 128]}, "prompt[1]"),
        ("/v1/completions", {"prompt": [[7], [7] * 128]}, "prompt[1]"),
        ("/v1/completions", {"prompt": ["a", "ab " * 9999]}, "prompt[1]"),
        ("/v1/completions", {"prompt": ["a", "a" * 9], "max_tokens": 120}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 120}]}, "messages"),
        (CHAT, {"messages": HELLO, "max_tokens": 128}, "max_tokens"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": 128}, "max_completion_tokens"),
    ],
)
def test_what_does_not_fit_the_context_is_named(
    path: str, body: dict[str, Any], param: str, serve_script: Any
) -> None:
    error = error_of(post(serve_script, json.dumps(body).encode(), path))
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert param in error["message"]


def test_a_prompt_that_can_never_fit_the_cache_is_refused(serve_script: Any) -> None:
    reply = post(serve_script, json.dumps({"prompt": "a" * 40}).encode(), blocks=10)
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["code"] == "context_length_exceeded"
    assert "KV cache" in error["message"]
    assert "40" in error["message"]


def test_a_text_that_is_far_too_long_is_refused_before_it_is_tokenized(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.engine.text.tokenizer import Tokenizer

    seen: list[int] = []
    encode = Tokenizer.encode

    def counted(self: Any, text: str, *args: Any, **kwargs: Any) -> list[int]:
        seen.append(len(text))
        return encode(self, text, *args, **kwargs)

    monkeypatch.setattr(Tokenizer, "encode", counted)
    reply = post(serve_script, json.dumps({"prompt": "ab " * 500_000}).encode())
    assert reply.status_code == 400
    assert error_of(reply)["code"] == "context_length_exceeded"
    assert seen == [1]


def test_a_model_that_is_not_served_is_a_404_with_the_names(serve_script: Any) -> None:
    reply = post(serve_script, b'{"model": "gpt-9", "prompt": "a"}')
    assert reply.status_code == 404
    error = error_of(reply)
    assert error["code"] == "model_not_found"
    assert "org/alias" in error["message"]


def test_routes_methods_and_types(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            http = served.http
            unknown = await http.get("/v1/nothing")
            slash = await http.get("/v1/models/x/")
            method = await http.get(PATH)
            form = await http.post(PATH, data={"prompt": "a"})
        assert (unknown.status_code, error_of(unknown)["code"]) == (404, "unknown_route")
        assert (slash.status_code, error_of(slash)["code"]) == (404, "model_not_found")
        assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
        assert "POST" in error_of(method)["message"]
        assert form.status_code == 415
        error_of(form)

    asyncio.run(run())


def test_a_body_beyond_the_limit_is_a_413_also_without_a_length(serve_script: Any) -> None:
    from hookserve.server.limits import MAX_BODY_BYTES, MAX_JSON_BYTES

    async def pieces() -> Any:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    async def run() -> None:
        headers = {"content-type": "application/json"}
        async with serve_script(say("a")) as served:
            chunked = await served.http.post(PATH, content=pieces(), headers=headers)
            body = b" " * (MAX_BODY_BYTES + 1)
            sized = await served.http.post(PATH, content=body, headers=headers)
        for reply, limit in ((chunked, MAX_JSON_BYTES), (sized, MAX_BODY_BYTES)):
            assert reply.status_code == 413
            assert f"{limit} bytes are the limit" in error_of(reply)["message"]

    asyncio.run(run())


class Panic(BaseException):
    """As compiled libraries raise them."""


@pytest.mark.parametrize("kind", [KeyError, Panic, SystemExit])
def test_an_unexpected_exception_is_a_500_logged_once_with_the_id(
    serve_script: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    from hookserve.server.serving import Serving

    def broken(self: Any, requested: Any) -> str:
        raise kind("/nowhere/secret")

    async def run() -> Any:
        monkeypatch.setattr(Serving, "model_name", broken)
        async with serve_script(say("a")) as served:
            return await served.http.post(
                PATH, json={"prompt": "a"}, headers={"x-request-id": "abc"}
            )

    reply = asyncio.run(run())
    assert reply.status_code == 500
    assert error_of(reply)["type"] == "server_error"
    assert "abc" in reply.json()["error"]["message"]
    found = [record for record in caplog.records if "abc" in record.getMessage()]
    assert len(found) == 1
    assert found[0].exc_info


@pytest.mark.parametrize(
    ("given", "back"),
    [("abc-1", "abc-1"), ("x" * 10_000, "x" * 128), ("a b\tc", "abc")],
)
def test_the_clients_request_id_is_cleaned_and_given_back(
    serve_script: Any, given: str, back: str
) -> None:
    async def run() -> Any:
        async with serve_script(say("a")) as served:
            named = await served.http.get("/v1/models", headers={"x-request-id": given})
            unnamed = await served.http.get("/v1/models")
        return named, unnamed

    named, unnamed = asyncio.run(run())
    assert named.headers["x-request-id"] == back
    assert len(unnamed.headers["x-request-id"]) == 32
