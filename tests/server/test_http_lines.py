"""The small HTTP client: addresses, and servers whose replies are not what was expected."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fake_openai import FakeOpenAI
from hookserve.server import command_chat
from hookserve.server.cli import main
from hookserve.server.http_lines import Address, ReplyError, model_names, request

OK = b"HTTP/1.1 200 OK\r\n"


async def read_events(address: Address) -> None:
    async with request(address, "GET", "/v1/models") as reply:
        async for _ in reply.events():
            pass


async def answered(content: bytes, *, as_events: bool) -> None:
    """Ask a server that answers with ``content``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        await (read_events(address) if as_events else model_names(address))


@pytest.mark.parametrize(
    ("content", "as_events", "words"),
    [
        (OK + b"\r\n<html>", False, "no JSON"),
        (OK + b'\r\n{"data": [1]}', False, "lists no model"),
        (OK + b"\r\n[]", False, "lists no model"),
        (OK + b"content-length: abc\r\n\r\n", False, "no HTTP"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", False, "no HTTP"),
        (OK + b"x: " + b"y" * 5_000_000 + b"\r\n\r\n", False, "a line of more than"),
        (OK + b"\r\ndata: {oops\n\n", True, "no JSON"),
        (OK + b"\r\ndata: 1\n\n", True, "no object"),
        (b"HTTP/1.1 418 No\r\n\r\n<html>", True, "418: <html>"),
    ],
)
def test_a_strange_reply_is_told_in_a_sentence(content: bytes, as_events: bool, words: str) -> None:
    with pytest.raises(ReplyError, match=words) as caught:
        asyncio.run(answered(content, as_events=as_events))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://example.org/llm/v1/", "https://example.org:443/llm"),
    ],
)
def test_an_address_is_read_and_written(url: str, text: str) -> None:
    assert str(Address.parse(url)) == text


def test_a_host_that_is_none_is_69(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", f"http://{'x' * 70}:1", "hi"]) == 69
    assert "no server answers" in capsys.readouterr().err


def test_the_key_goes_with_every_request() -> None:
    with FakeOpenAI() as server:
        assert main(["chat", "--url", server.url, "--api-key", "k", "hi"]) == 0
        assert [sent["Authorization"] for sent in server.headers] == ["Bearer k", "Bearer k"]


def test_a_mute_listener_at_the_default_address_is_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_chat, "PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address("127.0.0.1", mute.getsockname()[1])
        asyncio.run(asyncio.wait_for(check(address), 10))


async def check(address: Address) -> None:
    assert not await command_chat._serves(address, None, None)
