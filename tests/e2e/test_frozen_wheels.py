"""Two plugins that were built for hook API 1.0, once: they must go on working as they are.

``tests/frozen`` has the wheels and no source: what was published cannot be edited afterwards. One
has a route, a stat logger and ``request_finished``; the other a model that is a subclass of the
built-in Llama, ``settings_schema`` and the hooks around a request. Where a test here fails, the
contract was broken, not the wheel. The same server, to save a start, has a third plugin, which is
written here: it adds an option to the command line.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, wait_until
from plugin_folder import install_plugin
from tiny_llama import write_tiny_llama

WHEELS = {  # and how the digests of their content begin
    "frozen_front-1.0.0-py3-none-any.whl": "952290328253dd1f36865a65bb3a8312045ce3e0",
    "frozen_model-1.0.0-py3-none-any.whl": "36b7dd2ef5712c1bbab71efdada3682c773857f4",
}
FRONT, MODEL = "frozen-front:hookserve:frozen-front", "frozen-model:hookserve:frozen-model"


OPTIONS = """
from hookserve.hookspecs import hookimpl

@hookimpl
def cli_options(parser):
    parser.add_argument("--tenants", type=int)

@hookimpl
def process_started(roles, ctx):
    ctx.logger.info("in %s there are %r", "+".join(sorted(roles)), ctx.config["tenants"])
"""


@pytest.fixture(scope="module")
def server(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with both, installed from their wheels into a folder, offline, and the third."""
    base = tmp_path_factory.mktemp("frozen")
    wheels = [str(source_root / "tests" / "frozen" / name) for name in WHEELS]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-compile", "--target", str(base / "site")]
    subprocess.run([*pip, *offline, *wheels], check=True, timeout=120)
    toml = 'roles = ["cli", "front", "engine", "worker"]'
    install_plugin(base / "site", "options-dist", {"options": OPTIONS}, toml=toml)
    checkpoint = write_tiny_llama(base / "checkpoint", architecture="FrozenForCausalLM")
    arguments = [str(checkpoint), "--served-model-name", "m", "--enable-endpoints", "frozen-front"]
    arguments += ["--require-plugins", "frozen-front,frozen-model"]
    arguments += ["--plugin-config", json.dumps({"frozen-model": {"most_tokens": 5}})]
    arguments += ["--kv-cache-memory-bytes", str(64 << 20), "--tenants", "7"]
    with RunningServer(arguments, env={"PYTHONPATH": str(base / "site")}) as running:
        yield running


@pytest.mark.parametrize("name", WHEELS)
def test_a_wheel_is_the_one_that_was_published(name: str, source_root: Path) -> None:
    content = (source_root / "tests" / "frozen" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest()[:40] == WHEELS[name]


def test_both_are_active_in_every_process(server: RunningServer) -> None:
    found = server.get("/v1/plugins").json()
    text = json.dumps(found)
    assert FRONT in text and MODEL in text
    assert "WARNING" not in server.stderr, server.stderr


def test_model_settings_and_hooks_of_a_request_act(server: RunningServer) -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    whole = server.post("/v1/completions", body).json()
    assert whole["choices"][0]["text"] == "aaaaa"
    assert whole["usage"]["completion_tokens"] == 5
    few = server.post("/v1/completions", {**body, "max_tokens": 2}).json()
    assert few["choices"][0]["text"] == "aa"
    refused = server.post("/v1/completions", body, headers={"X-Frozen": "refuse"})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert refused.json()["error"]["code"] == "frozen"


def test_route_stat_logger_and_the_end_of_a_request_act(server: RunningServer) -> None:
    before = server.get("/frozen").json()
    body = {"model": "m", "prompt": "x", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    reply = server.post("/v1/completions", body)
    assert server.post("/frozen/echo", {"a": [1]}).json() == {"a": [1]}

    def seen() -> dict[str, Any]:
        return dict(server.get("/frozen").json())

    def records() -> list[dict[str, Any]]:
        own = reply.headers["x-request-id"]
        return [record for record in seen()["finished"] if record["request_id"] == own]

    def generated() -> int:
        return int(seen()["stats"]["generated"] - before["stats"]["generated"])

    wait_until(records, 10, "the hook at the end")
    wait_until(lambda: generated() >= 3, 10, "the stat logger's count")
    assert generated() == 3
    stats = seen()["stats"]
    assert (stats["built"], stats["initialized"], stats["engine_index"]) == (1, 1, 0)
    assert stats["served"] == "m"
    assert seen()["engine_running"] is True
    (record,) = records()
    assert record.pop("request_id") and record.pop("count")
    assert record == {
        "route": "/v1/completions",
        "model": "m",
        "num_completion_tokens": 3,
        "finish_reason": "length",
        "error": None,
    }


def test_a_plugins_option_reaches_it_in_every_process(server: RunningServer) -> None:
    for roles in ("front", "engine+worker"):
        assert f"in {roles} there are 7\n" in server.stderr
