"""A model, a section and routes of plugins in a server of four processes that ``python -c`` has
started: each has the same plugins, and each keeps to what the first one was told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, run_command
from plugin_folder import install_plugin
from tiny_llama import write_tiny_llama

PROMPT = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
PROCESSES = ["front", "engine", "worker 0", "worker 1"]

EVERYWHERE = """
import json
import os

import msgspec

from hookserve.hookspecs import ModelEntry, hookimpl

# Whoever asks the environment from now on is told otherwise.
os.environ |= {"HOOKSERVE_PLUGINS": "unwanted", "HOOKSERVE_DISABLE_PLUGINS": "everywhere"}


class Section(msgspec.Struct):
    trace: str
    threshold: float = 0.5


@hookimpl
def settings_schema():
    return Section


@hookimpl
def register_model():
    return ModelEntry("MyLlamaForCausalLM", "everywhere.model:MyLlamaForCausalLM")


@hookimpl
def process_started(roles, ctx):
    with open(ctx.config.trace, "a") as file:
        told = {"pid": os.getpid(), "roles": sorted(roles), "threshold": ctx.config.threshold}
        file.write(json.dumps(told) + "\\n")
"""
MODEL = """
import sys
from pathlib import Path

from hookserve.plugins_builtin.llama import LlamaForCausalLM

with (Path(__file__).parents[1] / "imports").open("a") as file:
    file.write(sys.argv[0] + "\\n")


class MyLlamaForCausalLM(LlamaForCausalLM):
    def compute_logits(self, hidden_states):
        logits = super().compute_logits(hidden_states)
        if logits is not None:
            logits[..., 32] = 1e4  # the token of "A" in the tests' byte tokenizer
        return logits
"""
HUNGRY = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hookserve.hookspecs import Endpoint, hookimpl


class Routes:
    def routes(self):
        return [
            Route("/v1/completions/", self.completions, methods=["POST"]),
            Route("/v1//models", self.completions, methods=["GET"]),
            Route("/{p:path}", lambda request: PlainTextResponse("swallowed")),
            Route("/late", self.completions, methods=["GET"]),
        ]

    async def completions(self, request):
        return PlainTextResponse("mine")


@hookimpl
def endpoint():
    return Endpoint("hungry", Routes)
"""
UNGUARDED = """
import sys
from hookserve.server.cli import main
sys.exit(main(["run", *sys.argv[1:]]))
"""


def install(site: Path) -> dict[str, str]:
    """Three plugins; the environment to find them in, which wants two of them, and in which
    nothing is known of models."""
    site.mkdir()
    install_plugin(site, "everywhere-dist", {"everywhere": EVERYWHERE})
    (site / "everywhere" / "model.py").write_text(MODEL)
    install_plugin(site, "hungry-dist", {"hungry": HUNGRY}, toml='roles = ["front"]')
    install_plugin(site, "unwanted-dist", {"unwanted": "raise SystemExit('imported')"})
    return {
        "PYTHONPATH": str(site),
        "HOOKSERVE_PLUGINS": " everywhere , hungry ,",
        "HOOKSERVE_CACHE": str(site.parent / "cache"),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("everywhere")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    model = write_tiny_llama(folder / "model", architecture="MyLlamaForCausalLM")
    section = {"everywhere": {"threshold": 0.3, "trace": str(folder / "trace")}}
    args = [str(model), "--served-model-name", "m", "--tensor-parallel-size", "2"]
    args += ["--plugin-config", json.dumps(section), "--enable-endpoints", "hungry"]
    program = [sys.executable, "-c", UNGUARDED]
    with RunningServer(args, env=install(folder / "site"), program=program) as running:
        yield running


def test_a_plugins_model_is_known_to_every_process(server: RunningServer) -> None:
    reply = server.post("/v1/completions", PROMPT)
    assert reply.json()["choices"][0]["text"] == "AAAA", reply.text
    told = server.get("/v1/plugins").json()["processes"]
    assert list(told) == PROCESSES
    for process, plugins in told.items():
        (mine,) = [each for each in plugins if each["name"] == "everywhere"]
        assert mine["state"] == "active", process
        (declared,) = mine["declarations"]
        assert (declared["name"], declared["state"]) == ("MyLlamaForCausalLM", "active"), process


def test_the_choice_of_plugins_is_made_once_for_all_processes(server: RunningServer) -> None:
    """Though the plugin changes the environment before there is a second process."""
    for process, plugins in server.get("/v1/plugins").json()["processes"].items():
        states = {each["name"]: each["state"] for each in plugins}
        assert states["everywhere"] == "active", process
        assert states["unwanted"] == "blocked", process


def test_a_plugins_section_is_delivered_in_every_process(
    server: RunningServer, folder: Path
) -> None:
    told = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    assert [each["threshold"] for each in told] == [0.3] * (len(PROCESSES) + 1)
    roles: list[Any] = sorted(each["roles"] for each in told)
    assert roles == [["engine"], ["front"], ["inspector"], ["worker"], ["worker"]]
    stay = {each["pid"] for each in told if each["roles"] != ["inspector"]}
    assert stay == set(server.get("/v1/plugins").json()["pids"].values())


@pytest.mark.checklist(21, 38, 39, 49, 51)
def test_a_models_code_is_imported_in_the_workers_and_the_inspector_alone(
    server: RunningServer, folder: Path
) -> None:
    importers = (folder / "site" / "imports").read_text().splitlines()
    names = [Path(each).stem for each in importers]
    assert sorted(names) == ["inspector", "worker_process", "worker_process"], server.output()
    assert "model 'MyLlamaForCausalLM' of everywhere-dist:hookserve:everywhere: inspected in" in (
        server.stderr
    )


def test_no_spelling_of_a_plugins_route_shadows_a_built_in_one(server: RunningServer) -> None:
    for path in ("/livez", "/readyz", "/version", "/v1/models", "/v1/models/m", "/v1/plugins"):
        assert server.get(path).text not in ("swallowed", "mine"), path
    assert server.post("/v1/completions", PROMPT).json()["choices"][0]["text"] == "AAAA"
    assert server.post("/v1/completions/", PROMPT).text == "mine"
    assert server.get("/v1//models").text == "mine"
    assert server.get("/any/thing").text == "swallowed"
    told = [line for line in server.stderr.splitlines() if "differ in slashes" in line]
    for line, path in zip(told, ("POST /v1/completions", "GET /v1/models"), strict=True):
        assert "hungry-dist:hookserve:hungry" in line and f"{path} of hookserve:builtin:" in line
    (line,) = [line for line in server.stderr.splitlines() if "never reached" in line]
    assert "GET /late of hungry-dist:hookserve:hungry is never reached: /{p:path} of" in line


def test_an_unknown_key_of_a_section_is_named_before_anything_starts(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", architecture="MyLlamaForCausalLM")
    section = {"everywhere": {"trace": "t", "treshold": 0.3}}
    words = ["run", str(model), "--plugin-config", json.dumps(section)]
    done = run_command(words, env=install(tmp_path / "site"))
    assert done.returncode == 78, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "everywhere-dist:hookserve:everywhere: unknown key 'treshold'" in last
    assert "did you mean threshold?" in last
