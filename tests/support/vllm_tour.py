"""A server with the toy package for vLLM in each of its processes, and what its plugins noted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import RunningServer, wait_until
from hookserve.engine import LLM, SamplingParams
from hookserve.hookspecs import PluginSettings
from plugin_folder import install_package, install_plugin

PLUGINS = "toy_register,toy_stat_logger,toy_endpoint"
RENAMED = ["--hf-overrides", '{"architectures": ["ToyLlamaForCausalLM"]}']
SMALL = ["--kv-cache-memory-bytes", str(64 << 20)]
NUM_TOKENS = 8
MODEL_MODULE = "vllm_toy_plugin.model"
ADMIN_KEY = {"authorization": "Bearer a"}
"""Sent to every server; one that has no keys reads none."""

PROBE = """
import json
import os

from hookserve.hookspecs import hookimpl


@hookimpl
def model_loaded(model):
    from hookserve.ops.layernorm import RMSNorm

    norms = [each for each in model.modules() if isinstance(each, RMSNorm)]
    told = {
        "event": "model",
        "pid": os.getpid(),
        "class": f"{type(model).__module__}:{type(model).__qualname__}",
        "norms": len(norms),
        "marked": sum(getattr(each, "toy", False) is True for each in norms),
    }
    with open(os.environ["TOY_PLUGIN_TRACE"], "a") as trace:
        trace.write(json.dumps(told) + "\\n")
"""


class Tour:
    """A folder with the toy, and with a plugin that looks at each worker's model."""

    def __init__(self, folder: Path, toy: Path) -> None:
        self.site = folder / "site"
        self._folder = folder
        install_package(self.site, toy)
        install_plugin(self.site, "tour-probe", {"tour_probe": PROBE}, toml='roles = ["worker"]')

    def environment(self, name: str, plugins: str = PLUGINS) -> dict[str, str]:
        """
        Args:
            name: of the server's trace.
            plugins: ``VLLM_PLUGINS``.
        """
        return {
            "PYTHONPATH": str(self.site),
            "TOY_PLUGIN_TRACE": str(self._folder / name),
            "HOOKSERVE_CACHE": str(self._folder / "cache"),
            "VLLM_LOG_STATS_INTERVAL": "0.25",
            "VLLM_PLUGINS": plugins,
        }

    def trace(self, name: str, event: str) -> list[dict[str, Any]]:
        lines = (self._folder / name).read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def registered(self, name: str) -> list[str]:
        """The kinds of the processes in which ``register`` was called, as often as it was."""
        return sorted(kind(each) for each in self.trace(name, "register"))

    def importers(self, name: str, module: str) -> list[str]:
        """The kinds of the processes that have imported the module."""
        found = self.trace(name, "import")
        return sorted(kind(each) for each in found if each["module"] == module)


def kind(traced: Mapping[str, Any]) -> str:
    """Which process of a server wrote a line of the trace."""
    argv = traced["argv"]
    return argv[argv.index("-m") + 1].rpartition(".")[2] if "-m" in argv else "front"


def complete(server: RunningServer, prompts: Any) -> list[str]:
    body = {"prompt": prompts, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    reply = server.post("/v1/completions", body, headers=ADMIN_KEY)
    assert reply.status_code == 200, reply.text
    return [choice["text"] for choice in reply.json()["choices"]]


def say_plainly(model: Path, prompts: Any) -> list[str]:
    """What the model says without any plugin."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    none = PluginSettings(allow=(), adapter_lists={"vllm": ""})
    with LLM(str(model), plugin_settings=none, kv_cache_memory_bytes=64 << 20) as llm:
        return [output.outputs[0].text for output in llm.generate(prompts, params)]


def op_in(server: RunningServer, name: str) -> dict[str, dict[str, Any]]:
    """What one op is in each process that has it."""
    tables = server.get("/v1/plugins", headers=ADMIN_KEY).json()["ops"]
    return {
        process: next(row for row in rows if row["op"] == name) for process, rows in tables.items()
    }


def lines_with(server: RunningServer, part: str) -> list[str]:
    return [line for line in server.stderr.splitlines() if part in line]


def check_tokens_are_logged(server: RunningServer, count: int) -> None:
    """Twice within less than the interval that holds when none is set."""
    made = f"Toy: engine 0 made {count} tokens"
    wait_until(lambda: len(lines_with(server, made)) >= 2, 8, f"{made!r} twice")
    (ready,) = lines_with(server, "Toy: engine 0 is ready")
    assert " INFO " in ready and "vllm-toy-plugin:vllm.stat_logger_plugins" in ready
