"""The whole facade, walked: each module says what it serves, and what it says is so."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from hookserve.plugins_builtin.vllm_compat.finder import FOLDER
from hookserve.plugins_builtin.vllm_compat.surface import modules, page, rows_of, walk

pytestmark = pytest.mark.usefixtures("vllm_facade")

TORCH_FREE = (
    "vllm",
    "vllm.logger",
    "vllm.envs",
    "vllm.config",
    "vllm.plugins",
    "vllm.platforms",
    "vllm.sampling_params",
    "vllm.outputs",
    "vllm.v1.metrics.loggers",
    "vllm.v1.metrics.stats",
    "vllm.v1.metrics.prometheus",
    "vllm.model_executor.models.registry",
    "vllm.version",
    "vllm.inputs",
    "vllm.tasks",
    "vllm.tool_parsers",
    "vllm.reasoning.basic_parsers",
    "vllm.entrypoints.openai.protocol",
    "vllm.entrypoints.openai.tool_parsers",
    "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.pooling.pooling.protocol",
    "vllm.plugins.io_processors",
    "vllm.lora.request",
    "vllm.lora.resolver",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.engine.protocol",
    "vllm.entrypoints.openai.api_server",
    "vllm.plugins.endpoint_plugins.interface",
    "vllm.v1.engine.async_llm",
)
"""Modules that a process without torch imports, or one that has just started."""

PROBES = ("zq_no_such_name", "Zq", "register_zq", "is_zq", "zq")


def faults_of(name: str, module: ModuleType) -> list[str]:
    """What is wrong with one module, in words."""
    faults = []
    file = Path(str(module.__file__))
    if not file.is_file() or FOLDER not in file.parents:
        faults.append(f"its file is {file}")
    if not (module.__doc__ or "").strip():
        faults.append("it has no docstring")
    rows = list(rows_of(name))
    there = {row.name for row in rows if row.state != "refused"}
    if set(getattr(module, "__all__", ())) != there:
        faults.append(f"__all__ and __surface__ differ in {set(module.__all__) ^ there}")
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == name
    }
    faults += [f"{key} is public and not listed" for key in own - there]
    faults += [f"{probe} is answered" for probe in PROBES if hasattr(module, probe)]
    for row in rows:
        faults += fault_of_name(module, row.name, row.state)
    return faults


def fault_of_name(module: ModuleType, name: str, state: str) -> list[str]:
    if state == "refused":
        is_there = hasattr(module, name)
        is_module = hasattr(module, "__path__") and bool(
            importlib.util.find_spec(f"{module.__name__}.{name}")
        )
        return [f"{name} is refused and there"] if is_there or is_module else []
    if not hasattr(module, name):
        return [f"{name} is {state} and not there"]
    value: Any = getattr(module, name)
    if isinstance(value, mock.NonCallableMock):
        return [f"{name} is a mock"]
    home = value if inspect.ismodule(value) else inspect.getmodule(type(value))
    if inspect.isclass(value) or inspect.isfunction(value):
        home = inspect.getmodule(value)
    return [] if home is not None else [f"{name} comes of no module"]


def test_each_module_says_what_it_serves_and_serves_it() -> None:
    found = {name: importlib.import_module(name) for name in modules()}
    assert found["vllm.platforms"]._init_trace == "", "an import has asked for the platform"
    faults = {name: faults_of(name, module) for name, module in found.items()}
    assert {name: told for name, told in faults.items() if told} == {}


def test_the_table_has_a_row_for_each_name_and_the_page_shows_it(source_root: Path) -> None:
    rows = walk()
    assert len({(row.module, row.name) for row in rows}) == len(rows)
    assert {"live", "shape", "refused"} == {row.state for row in rows}
    shown = (source_root / "docs" / "vllm-surface.md").read_text(encoding="utf-8")
    assert shown == page(), (
        "run: python -m hookserve.plugins_builtin.vllm_compat.surface > docs/vllm-surface.md"
    )


BLOCKED = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["triton"] = None
from hookserve.plugins_builtin.vllm_compat import finder
finder.install()
for name in sys.argv[1:]:
    __import__(name)
heavy = {"fastapi", "pydantic", "starlette"} & set(sys.modules)
print(sorted(heavy))
"""


def test_what_front_and_command_line_import_needs_no_torch() -> None:
    command = [sys.executable, "-c", BLOCKED, *TORCH_FREE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
