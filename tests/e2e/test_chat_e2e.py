"""``server chat`` with a server of its own: started, talked to, and gone."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness import (
    SERVER,
    clean_environment,
    command_line,
    process_parents,
    run_command,
    wait_until,
)

pytestmark = pytest.mark.e2e


def processes_of(mark: str) -> list[int]:
    return [pid for pid in process_parents() if mark in command_line(pid)]


def test_one_turn_with_an_own_server_leaves_nothing_behind(tiny_llama: Path) -> None:
    done = run_command(
        ["chat", "--model", str(tiny_llama), "--max-tokens", "4", "--max-num-seqs", "2", "hi"]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert "Traceback" not in done.stderr
    assert processes_of(str(tiny_llama)) == []


def test_an_own_server_that_refuses_says_why_and_its_code_is_handed_on() -> None:
    done = run_command(["chat", "--model", "./no/such/folder", "hi"])
    assert done.returncode == 74
    assert "no/such/folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_own_server_does_not_outlive_a_killed_chat(tiny_llama: Path) -> None:
    with tempfile.TemporaryDirectory() as empty:
        chat = subprocess.Popen(
            [str(SERVER), "chat", "--model", str(tiny_llama), "hi"],
            env=clean_environment(),
            cwd=empty,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: len(processes_of(str(tiny_llama))) > 1, 30, "a server of its own")
        os.kill(chat.pid, signal.SIGKILL)
        chat.wait()
        wait_until(lambda: not processes_of(str(tiny_llama)), 30, "the end of its server")
