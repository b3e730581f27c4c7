"""What a raw connection shows: framings that are refused, replies that arrive though the client
still writes, and clients that say early that they will write no more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.server import http_protocol
from hookserve.server.limits import MAX_BODY_BYTES, MAX_JSON_BYTES, MAX_JSON_PARTS, MAX_JSON_TEXTS
from http_front import exchange, listening, post
from scripted_engine import say

BODY = b'{"prompt": "a", "max_tokens": 1}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = f"Content-Length: {len(BODY)}"
TE = "Transfer-Encoding"


def replies_to(serve_script: Any, *requests: bytes, half_close: bool = False) -> list[bytes]:
    async def run() -> list[bytes]:
        async with serve_script(say("a")) as served, listening(served.runtime) as port:
            found = [await exchange(port, each, half_close=half_close) for each in requests]
            after = await exchange(port, post(BODY))
            assert after.startswith(b"HTTP/1.1 200 ")
            return found

    return asyncio.run(run())


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def error_of(reply: bytes) -> dict[str, Any]:
    body = json.loads(reply.partition(b"\r\n\r\n")[2])
    assert body["error"].keys() == {"message", "type", "param", "code"}
    return dict(body["error"])


REFUSED: dict[str, tuple[int, bytes]] = {
    "gzip, chunked": (501, post(CHUNKED, f"{TE}: gzip, chunked")),
    "in two headers": (501, post(CHUNKED, f"{TE}: gzip", f"{TE}: chunked")),
    "upper case": (501, post(CHUNKED, f"{TE.upper()}: GZIP, CHUNKED")),
    "deflate with a tab": (501, post(CHUNKED, f"{TE}: deflate,\tchunked")),
    "identity": (501, post(BODY, f"{TE}: identity")),
    "identity and a length": (400, post(BODY, f"{TE}: identity", LENGTH)),
    "chunked twice": (400, post(CHUNKED, f"{TE}: chunked, chunked")),
    "chunked in two headers": (400, post(CHUNKED, f"{TE}: chunked", f"{TE}: chunked")),
    "chunked not last": (400, post(CHUNKED, f"{TE}: chunked, gzip")),
    "almost chunked": (501, post(CHUNKED, f"{TE}: xchunked")),
    "chunked with a parameter": (501, post(CHUNKED, f"{TE}: chunked;a=b")),
    "a target with a port beyond every number": (400, post(BODY, path="http://a:99999/v1")),
    "a target that is half of an address": (400, post(BODY, path="http://[::1/v1/completions")),
    "a space before the colon": (400, post(CHUNKED, f"{TE} : chunked")),
    "chunked and a length": (400, post(CHUNKED, f"{TE}: chunked", LENGTH)),
    "a length and chunked": (400, post(CHUNKED, LENGTH, f"{TE}: chunked")),
    "the length twice": (400, post(BODY, LENGTH, LENGTH)),
    "two lengths": (400, post(BODY, LENGTH, "content-length: 3")),
    "a list of lengths": (400, post(BODY, f"{LENGTH}, {len(BODY)}")),
    "a signed length": (400, post(BODY, f"Content-Length: +{len(BODY)}")),
    "a negative length": (400, post(BODY, "Content-Length: -1")),
    "a length beyond every number": (400, post(BODY, "Content-Length: " + "9" * 30)),
    "a folded header": (400, post(BODY, "X-A: b\r\n  c")),
    "a folded framing": (400, post(CHUNKED, f"{TE}:\r\n chunked")),
    "NUL in a value": (400, post(BODY, "X-A: b\0c")),
    "NUL in a name": (400, post(BODY, "X-\0A: b")),
    "a bare CR": (400, post(BODY, "X-A: b\rc")),
    "bare LFs": (400, post(BODY).replace(b"\r\n", b"\n")),
    "two hosts": (400, post(BODY, "Host: b")),
    "chunked in HTTP/1.0": (400, post(CHUNKED, f"{TE}: chunked").replace(b"/1.1", b"/1.0")),
    "HTTP/2.0": (505, post(BODY).replace(b"HTTP/1.1", b"HTTP/2.0")),
    "another expectation": (417, post(BODY, "Expect: 200-maybe")),
    "a chunk without a size": (400, post(b"zz\r\n" + BODY, f"{TE}: chunked")),
    "a compressed body": (415, post(BODY, "Content-Encoding: gzip")),
    "a body compressed twice": (415, post(BODY, "content-encoding: identity, BR")),
}


@pytest.mark.parametrize(("status", "request_"), REFUSED.values(), ids=REFUSED.keys())
def test_a_framing_that_can_be_read_in_two_ways_is_refused(
    serve_script: Any, status: int, request_: bytes
) -> None:
    (reply,) = replies_to(serve_script, request_)
    assert status_of(reply) == status, reply
    assert reply.count(b'{"error":') == 1
    assert error_of(reply)["message"]


@pytest.mark.parametrize(
    "headers",
    [
        [f"{TE}: chunked"],
        [f"{TE.upper()}: \tCHUNKED "],
        [f"{TE}: , chunked"],
        [LENGTH, "Content-Encoding: identity"],
        [LENGTH, "expect: 100-Continue"],
    ],
)
def test_a_framing_that_is_plain_is_served(serve_script: Any, headers: list[str]) -> None:
    body = BODY if LENGTH in headers else CHUNKED
    (reply,) = replies_to(serve_script, post(body, *headers))
    reply = reply.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert status_of(reply) == 200, reply
    assert b'"text":"a"' in reply


def test_what_follows_a_refusal_is_no_request(serve_script: Any) -> None:
    """The end of what was refused is unknown; what looks like a request there is not served."""
    for bad in (post(CHUNKED, f"{TE}: gzip, chunked"), post(BODY, LENGTH, LENGTH)):
        (reply,) = replies_to(serve_script, bad + post(BODY))
        assert reply.count(b"content-length") == 1


def test_garbage_behind_a_request_is_not_answered_in_the_midst_of_its_reply(
    serve_script: Any,
) -> None:
    def endless(request: AddRequest) -> list[EngineCoreOutput]:
        return [EngineCoreOutput(request.request_id, [97])] * 10_000

    async def run() -> bytes:
        async with serve_script(endless) as served, listening(served.runtime) as port:
            stream = b'{"prompt": "a", "stream": true, "max_tokens": 100, "ignore_eos": true}'
            return await exchange(port, post(stream).replace(b"close", b"keep-alive") + b"\0\0\0\0")

    assert b"not a valid HTTP" not in asyncio.run(run())


# -- a client that writes first and reads then -----------------------------------------------------


def write_all_then_read(port: int, head: bytes, num_bytes: int) -> bytes:
    """As most clients do: nothing is read before all is written. Empty if it was cut off."""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
    ):
        sock.sendall(head)
        piece = b" " * 2**20
        for _ in range(num_bytes // len(piece)):
            sock.sendall(piece)
        found = b""
        while piece := sock.recv(65536):
            found += piece
        return found
    return b""


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/nothing"])
def test_a_client_that_writes_a_body_that_is_too_big_first_reads_the_413_then(
    serve_script: Any, path: str
) -> None:
    size = 2 * MAX_BODY_BYTES
    head = post(b"", f"Content-Length: {size}", path=path)

    async def run() -> bytes:
        async with serve_script(say("a")) as served, listening(served.runtime) as port:
            return await asyncio.to_thread(write_all_then_read, port, head, size)

    reply = asyncio.run(run())
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert error_of(reply)["code"] == "body_too_large"


def test_httpx_reads_the_413_and_goes_on(serve_script: Any) -> None:
    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 2**20

    async def run() -> None:
        headers = {"content-type": "application/json"}
        async with (
            serve_script(say("a")) as served,
            listening(served.runtime) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
        ):
            for content in (b" " * (2 * MAX_BODY_BYTES), pieces(64), b" " * (MAX_JSON_BYTES + 1)):
                reply = await http.post("/v1/completions", content=content, headers=headers)
                assert reply.status_code == 413
                assert reply.json()["error"]["code"] == "body_too_large"
            reply = await http.post("/v1/completions", content=BODY, headers=headers)
            assert reply.status_code == 200

    asyncio.run(run())


def test_a_reply_before_the_end_of_a_request_leaves_the_connection_usable(
    serve_script: Any,
) -> None:
    """A 404 is sent at once; what is left of its body is no next request."""
    size = 4 * 2**20
    first = post(b"", f"Content-Length: {size}", path="/v1/nothing").replace(
        b"close", b"keep-alive"
    )
    (reply,) = replies_to(serve_script, first + b" " * size + post(BODY))
    assert reply.count(b"HTTP/1.1 404 ") == 1
    assert reply.count(b"HTTP/1.1 200 ") == 1


def test_a_client_that_never_ends_its_refused_body_is_closed(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "DROP_IDLE_S", 0.05)
    head = post(b"", f"Content-Length: {2 * MAX_BODY_BYTES}")
    replies = replies_to(serve_script, head, head.replace(b"close", b"keep-alive") + b"   ")
    assert [status_of(reply) for reply in replies] == [413, 413]


def test_a_client_that_writes_for_ever_is_closed(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_DROPPED_BYTES", 2**20)

    async def run() -> None:
        async with serve_script(say("a")) as served, listening(served.runtime) as port:
            head = post(b"", f"Content-Length: {2**40}")
            assert await asyncio.to_thread(write_all_then_read, port, head, 2**30) == b""

    asyncio.run(run())


# -- a body that takes long to decode --------------------------------------------------------------


def test_a_large_body_is_decoded_beside_the_event_loop(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding lasts until the event loop has done something else."""
    import threading

    from hookserve.server.wire_json import RequestDecoder

    decode = RequestDecoder.decode
    begun, seen = threading.Event(), threading.Event()

    def slow(self: Any, body: bytes) -> Any:
        begun.set()
        assert seen.wait(5), "the event loop stands still"
        return decode(self, body)

    monkeypatch.setattr(RequestDecoder, "decode", slow)

    async def run() -> None:
        async with serve_script(say("a")) as served:
            body = json.dumps({"prompt": "a", "user": "x" * 200_000}).encode()
            headers = {"content-type": "application/json"}
            sent = served.http.post("/v1/completions", content=body, headers=headers)
            reply = asyncio.create_task(sent)
            async with asyncio.timeout(10):
                while not begun.is_set():
                    await asyncio.sleep(0.001)
            seen.set()
            assert (await reply).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [' + b"[1]," * MAX_JSON_PARTS + b"[1]]}",
        b'{"prompt": "a", "logit_bias": [' + b"{}," * MAX_JSON_PARTS + b"{}]}",
        b'{"prompt": [' + b'"a",' * MAX_JSON_TEXTS + b'"a"]}',
    ],
)
def test_a_body_of_very_many_small_parts_is_refused_before_it_is_decoded(
    serve_script: Any, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.server.wire_json import RequestDecoder

    def never(self: Any, body: bytes) -> Any:
        raise AssertionError("it was decoded")

    async def run() -> Any:
        async with serve_script(say("a")) as served:
            monkeypatch.setattr(RequestDecoder, "decode", never)
            headers = {"content-type": "application/json"}
            return await served.http.post("/v1/completions", content=body, headers=headers)

    reply = asyncio.run(run())
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "body_too_complex"


@pytest.mark.parametrize(
    ("prompt", "param"), [([1] * 2000, "prompt"), ([[1], [1] * 2000], "prompt[1]")]
)
def test_a_prompt_of_too_many_tokens_is_refused_before_each_is_looked_at(
    serve_script: Any, prompt: list[Any], param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookserve.server import prompts

    def never(prompt: Any) -> Any:
        raise AssertionError("it was looked at")

    async def run() -> Any:
        async with serve_script(say("a")) as served:
            monkeypatch.setattr(prompts, "split_prompt", never)
            return await served.http.post("/v1/completions", json={"prompt": prompt})

    reply = asyncio.run(run())
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


# -- a client that says that it will write no more -------------------------------------------------


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_ends_its_side_is_gone(serve_script: Any, stream: str) -> None:
    """Nothing tells it from one that was closed; the engine must not go on for nobody."""

    def endless(request: AddRequest) -> list[EngineCoreOutput]:
        return [EngineCoreOutput(request.request_id, [97])] * 100_000

    async def run() -> None:
        async with serve_script(endless) as served, listening(served.runtime) as port:
            served.engine.gate.clear()
            body = b'{"prompt": "a", "max_tokens": 100, "stream": %s}' % stream.encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(body))
            async with asyncio.timeout(10):
                while not served.engine.requests:
                    await asyncio.sleep(0.001)
                writer.write_eof()
                assert await reader.read() == b""
                while not served.engine.aborted:
                    await asyncio.sleep(0.001)
            writer.close()
            assert served.runtime.client.num_unfinished_requests == 0

    asyncio.run(run())
