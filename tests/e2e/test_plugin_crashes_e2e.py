"""A real server with worker processes, and plugins that end them, one at the start, one later."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from harness import RunningServer

EARLY = """
import ctypes
from hookserve.hookspecs import hookimpl

@hookimpl
def process_started(roles):
    if "worker" in roles:
        ctypes.string_at(0)
"""

LATE = """
import logging, os
from hookserve.hookspecs import hookimpl

@hookimpl
def before_step():
    logging.getLogger("own.name").warning("a step")
    if os.path.exists({flag!r}):
        os._exit(0)
"""


def test_a_plugin_that_ends_workers_is_left_out_at_the_start_and_named_later(
    running_server: Callable[..., RunningServer], tiny_llama: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "late.py").write_text(LATE.format(flag=str(flag)))
    plugins = ["--plugin", str(tmp_path / "early.py"), "--plugin", str(tmp_path / "late.py")]
    server = running_server([str(tiny_llama), "--tensor-parallel-size", "2", *plugins])
    ran = f"its code ran when the process was killed by {signal.SIGSEGV.name}"
    again, out = server.stderr.index("is started once more"), server.stderr.index("without it")
    assert again < out
    assert f"plugin file:early: {ran} (worker); the engine is started once more" in server.stderr
    assert f"plugin file:early failed in the worker process (crash: {ran})" in server.stderr
    body = {"prompt": [1], "max_tokens": 2, "ignore_eos": True}
    assert server.post("/v1/completions", body).status_code == 200
    for rank in (0, 1):
        said = rf"\(Worker {rank} pid=\d+\) WARNING .* plugin file:late says: a step"
        assert re.search(said, server.stderr), server.stderr
    flag.touch()
    try:
        reply = server.post("/v1/completions", body)
    except httpx.TransportError:
        pass
    else:
        assert reply.status_code == 503
    assert server.wait_exit(10) == 70, server.output()
    last = server.stderr.splitlines()[-1]
    assert re.search(
        r"\(Front pid=\d+\) ERROR .* the server ends with exit code 70: the engine stopped: "
        r"worker \d \(pid \d+\) ended with exit code 0 while the code of plugin file:late ran$",
        last,
    ), last
    assert "Traceback" not in server.stderr
