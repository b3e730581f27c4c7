"""The server that a chat starts for itself: what it does between its two programs."""

from __future__ import annotations

import subprocess
import sys

LATE = """
import os
import time

from hookserve.server.own_server import _end_with_parent

ask, parent = _end_with_parent(), os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print("before", flush=True)
ask()
print("went on", flush=True)
"""


def test_a_child_whose_parent_ended_before_it_could_ask_ends_too() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LATE], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("before\n", "")
