"""Logits processors in a real server with two ranks: one of a plugin, two by their class paths, and
requests of all kinds at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer
from offline_engine import SUPPORT, OfflineEngine
from plugin_folder import install_plugin

PLUGIN = """
from hookserve.hookspecs import Named, hookimpl


@hookimpl
def logits_processor():
    return Named("counter", "processors:Counter")
"""
IDENTITY = "counting-dist:hookserve:counting"
SHAPES = ("OtherOnRankOne", "Counter", "SlotForcer", None)
NEW_TOKENS = 12
PROMPTS = [[(13 * at + 7 * n + n * n) % 250 for n in range(4 + 2 * at)] for at in range(8)]
LIMITS = ("--max-model-len", "64", "--block-size", "4", "--num-gpu-blocks-override", "20")


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    site = tmp_path_factory.mktemp("site")
    install_plugin(site, "counting-dist", {"counting": PLUGIN})
    args = ["--tensor-parallel-size", "2", *LIMITS]
    args += ["--logits-processors", "processors:OtherOnRankOne,processors:SlotForcer"]
    env = {"PYTHONPATH": f"{site}:{SUPPORT}"}
    with RunningServer([str(tiny_llama), *args], env=env) as server:
        yield server


def body(at: int) -> dict[str, Any]:
    shape = SHAPES[at % 4]
    xargs = {"by": shape, "at": 6 + at % 3, "token": 7 + at, "prompt": PROMPTS[at]}
    wanted = {"prompt": PROMPTS[at], "max_tokens": NEW_TOKENS, "temperature": 0}
    wanted |= {"ignore_eos": True, "return_token_ids": True}
    return wanted | ({"vllm_xargs": xargs} if shape else {})


def test_each_acts_on_its_own_requests_in_every_rank(
    server: RunningServer, tiny_llama: Path
) -> None:
    def ask(at: int) -> list[int]:
        reply = server.post("/v1/completions", body(at))
        assert reply.status_code == 200, reply.text
        tokens: list[int] = reply.json()["choices"][0]["token_ids"]
        return tokens

    alone = [ask(at) for at in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(8)))
    assert together == alone
    with OfflineEngine(tiny_llama) as engine:
        plain = engine.generate(PROMPTS, NEW_TOKENS)
    for at, tokens in enumerate(alone):
        if SHAPES[at % 4] is None:
            assert tokens == plain[at]
        else:
            place = 6 + at % 3 - 1
            assert tokens[:place] == plain[at][:place]
            assert tokens[place] == 7 + at


def test_the_plugins_own_is_used_in_front_and_in_every_worker(server: RunningServer) -> None:
    refused = server.post("/v1/completions", body(1) | {"vllm_xargs": {"by": "Counter", "at": []}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "vllm_xargs"
    processes = server.get("/v1/plugins").json()["processes"]
    used = {
        process: [each["used"] for each in plugin["declarations"]]
        for process, plugins in processes.items()
        for plugin in plugins
        if plugin["identity"] == IDENTITY
    }
    assert used == {"front": [True], "engine": [], "worker 0": [True], "worker 1": [True]}
