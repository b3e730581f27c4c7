"""``server chat``: turns, streaming, interrupts, and which server it talks to."""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_openai import FakeOpenAI
from hookserve.server import command_chat
from hookserve.server.cli import main
from hookserve.server.own_server import OwnServer, OwnServerError, flag_words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``typed("hi", KeyboardInterrupt)``: lines at a terminal, then the end of the input."""

    def type_lines(*lines: Any) -> None:
        left: Iterator[Any] = iter(lines)

        def read(prompt: str) -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr(builtins, "input", read)

    return type_lines


def test_one_turn_streams_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(pieces=("Par", "is", ".")) as server:
        words = ["--temperature", "0", "--max-tokens", "9", "--system", "Be brief."]
        assert main(["chat", "--url", server.url, *words, "Capital?"]) == 0
    assert capsys.readouterr().out == "Paris.\n"
    (body,) = server.bodies
    assert body == {
        "model": "fake",
        "stream": True,
        "temperature": 0.0,
        "max_tokens": 9,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Capital?"},
        ],
    }


class Screen(io.StringIO):
    """Standard output that tells another thread when a text has been shown."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._changed = threading.Condition()
        monkeypatch.setattr(sys, "stdout", self)

    def write(self, text: str) -> int:
        with self._changed:
            count = super().write(text)
            self._changed.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.getvalue(), 10), self.getvalue()


def test_the_answer_is_printed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    seen: list[str] = []

    def before(index: int) -> None:
        if index == 1:
            screen.wait_for("one")
            seen.append(screen.getvalue())

    with FakeOpenAI(pieces=("one", " two"), before_piece=before) as server:
        assert main(["chat", "--url", server.url, "hi"]) == 0
    assert seen == ["one"]


def test_a_pipe_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    with FakeOpenAI() as server:
        assert main(["chat", "--url", server.url]) == 0
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "first\nsecond\n"}]
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    with FakeOpenAI() as server:
        assert main(["chat", "--url", server.url]) == 2
    assert "empty" in capsys.readouterr().err


def test_later_turns_carry_the_earlier_ones(typed: Callable[..., None]) -> None:
    typed("one", "  ", KeyboardInterrupt, "two")
    with FakeOpenAI(pieces=("an", "swer")) as server:
        assert main(["chat", "--url", server.url]) == 0
    assert [len(body["messages"]) for body in server.bodies] == [1, 3]
    assert server.bodies[1]["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "two"},
    ]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: a run that was started in the background inherits SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_stops_the_answer_and_keeps_what_was_said(
    typed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen(monkeypatch)
    typed("one", "two")
    release = threading.Event()
    interrupted = threading.Event()

    def before(index: int) -> None:
        if index == 1 and not interrupted.is_set():
            interrupted.set()
            screen.wait_for("par")
            os.kill(os.getpid(), signal.SIGINT)
            release.wait(10)

    with FakeOpenAI(pieces=("par", "tial"), before_piece=before) as server:
        code = main(["chat", "--url", server.url])
        release.set()
    assert code == 0
    first_answer = server.bodies[1]["messages"][1]
    assert first_answer == {"role": "assistant", "content": "par"}
    assert screen.getvalue().count("partial") == 1


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_of_a_single_turn_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    release = threading.Event()

    def before(index: int) -> None:
        if index == 1:
            screen.wait_for("Hel")
            os.kill(os.getpid(), signal.SIGINT)
            release.wait(10)

    with FakeOpenAI(before_piece=before) as server:
        assert main(["chat", "--url", server.url, "hi"]) == 130
        release.set()
    assert screen.getvalue() == "Hel\n"


def test_a_refused_turn_leaves_the_conversation_as_it_was(
    typed: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("too long", "short")
    with FakeOpenAI(error=(400, "does not fit")) as server:
        assert main(["chat", "--url", server.url]) == 0
    assert [len(body["messages"]) for body in server.bodies] == [1, 1]
    assert capsys.readouterr().err.count("does not fit") == 2


def test_no_server_at_the_url_is_69(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI() as server:
        url = server.url
    assert main(["chat", "--url", url, "hi"]) == 69


# -- which server ------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What an own server would have been started with, beside a key that nobody else has; it
    refuses to start."""
    flags: list[dict[str, Any]] = []
    keys: set[str] = set()

    def own_server(given: dict[str, Any]) -> OwnServer:
        (key,) = given["api_key"]
        assert len(key) >= 32 and key not in keys
        keys.add(key)
        flags.append({name: value for name, value in given.items() if name != "api_key"})
        raise OwnServerError(75)

    monkeypatch.setattr(command_chat, "OwnServer", own_server)
    return flags


def test_a_running_server_is_used_when_nothing_says_otherwise(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeOpenAI(models=("a", "b")) as server:
        monkeypatch.setattr(command_chat, "DEFAULT_URL", server.url)
        assert main(["chat", "hi"]) == 0
        assert main(["chat", "--model", "b", "hi"]) == 0
        assert [body["model"] for body in server.bodies] == ["a", "b"]
        assert started == []
        assert main(["chat", "--model", "c", "hi"]) == 75
        assert main(["chat", "--dtype", "float32", "hi"]) == 75
    assert started == [{"model": "c"}, {"dtype": "float32"}]


def test_with_none_running_it_starts_one_with_the_same_flags(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeOpenAI() as server:
        monkeypatch.setattr(command_chat, "DEFAULT_URL", server.url)
    assert main(["chat", "--plugin", "./a.py", "--plugin", "b", "hi"]) == 75
    assert started == [{"plugin": ["./a.py", "b"]}]


def test_flags_are_written_as_they_are_read() -> None:
    flags = {
        "model": "m",
        "served_model_name": ["a", "b"],
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "prefer": ["model:X=y"],
    }
    assert flag_words(flags) == [
        "--model=m",
        "--served-model-name=a",
        "--served-model-name=b",
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--prefer=model:X=y",
    ]


def test_an_own_server_that_cannot_start_hands_on_its_exit_code(tmp_path: Path) -> None:
    with pytest.raises(OwnServerError) as caught, OwnServer({"model": str(tmp_path / "no")}) as own:
        own.wait_ready()
    assert caught.value.exit_code == 74
