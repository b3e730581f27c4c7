"""The line that renews itself, and Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import io
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.interrupts import held_interrupts
from hookserve.engine.outputs import CompletionOutput, RequestOutput
from hookserve.engine.progress import ProgressBar, make_progress


def ended(num_prompt: int, *lengths: int) -> RequestOutput:
    completions = [CompletionOutput(i, "", [0] * n) for i, n in enumerate(lengths)]
    return RequestOutput("r", None, [0] * num_prompt, None, completions, True)


def test_the_bar_counts_requests_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(
        "hookserve.engine.progress.time", SimpleNamespace(monotonic=lambda: clock[0])
    )
    stream = io.StringIO()
    bar = ProgressBar(3, stream)
    clock[0] = 102.0
    bar.add(ended(8, 3, 5))
    clock[0] = 102.05
    bar.add(ended(2, 2))  # too soon to draw again
    clock[0] = 104.0
    bar.close()
    lines = [line.rstrip() for line in stream.getvalue().split("\r") if line]
    assert lines == [
        "Processed prompts: 0/3, 0.00 req/s, input 0.0 tokens/s, output 0.0 tokens/s",
        "Processed prompts: 1/3, 0.50 req/s, input 4.0 tokens/s, output 4.0 tokens/s",
        "Processed prompts: 2/3, 0.50 req/s, input 2.5 tokens/s, output 2.5 tokens/s",
    ]
    assert stream.getvalue().endswith("\n")


def test_a_bar_of_somebody_else_is_fed() -> None:
    said: list[Any] = []

    class Bar:
        def __init__(self, **options: Any) -> None:
            said.append(options)

        def update(self, count: int) -> None:
            said.append(count)

        def close(self) -> None:
            said.append("closed")

    progress = make_progress(Bar, 2)
    progress.add(ended(1, 1))
    progress.close()
    assert said == [{"total": 2, "desc": "Processed prompts", "unit": "req"}, 1, "closed"]


def test_nothing_is_written_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (True, False):
        progress = make_progress(wanted, 1)
        progress.add(ended(1, 1))
        progress.close()
    assert capsys.readouterr().err == ""


def test_an_interrupt_waits_for_the_check_and_the_second_one_does_not() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_interrupts() as held:
        os.kill(os.getpid(), signal.SIGINT)
        done.append("the step ends")
        held.check()
        done.append("never")
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append("never")
    with pytest.raises(KeyboardInterrupt), held_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("at the latest at the end")
    assert done == ["the step ends", "at the latest at the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_are_left_alone_in_threads_and_where_somebody_handles_them() -> None:
    inside: list[Any] = []

    def hold() -> None:
        with held_interrupts():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hold()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert inside == [previous, signal.SIG_IGN]
