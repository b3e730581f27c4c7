"""``server plugins`` with packages that were written for vLLM: listed from their metadata, and
shown as a load finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from plugin_folder import install_plugin

GENERAL = "vllm.general_plugins"
GUARDED = """
import os
open(os.environ["TRACE"], "a").write("{name} ")

def register():
    from vllm import ModelRegistry
    if "Same" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("Same", "{name}.model:Model")
"""


def test_they_are_listed_without_an_import_and_shown_with_what_they_left_to_others(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "trace"
    for name in ("alpha", "beta"):
        groups = {GENERAL: {name: f"{name}:register"}, "vllm.general_plugin": {"slip": f"{name}:x"}}
        install_plugin(tmp_path, name, {name: GUARDED.format(name=name)}, groups=groups)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("HOOKSERVE_")},
        "PYTHONPATH": str(tmp_path),
        "HOOKSERVE_CACHE": str(tmp_path / "cache"),
        "TRACE": str(trace),
    }

    def plugins(*words: str, said: str = "", **more: str) -> str:
        command = [sys.executable, "-P", "-m", "hookserve.server.cli", "plugins", *words]
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, said)
        return done.stdout

    told = "VLLM_PLUGINS: no entry point is called 'gamma'; there are: alpha, beta, slip\n"
    listed = json.loads(plugins("list", "--json", VLLM_PLUGINS="beta,gamma", said=told))
    rows = {row["identity"]: row for row in listed if not row["builtin"]}
    assert not trace.exists()
    assert {identity: row["state"] for identity, row in rows.items()} == {
        f"alpha:{GENERAL}:alpha": "blocked by VLLM_PLUGINS, which does not name it",
        f"beta:{GENERAL}:beta": "found",
        **{
            f"{name}:vllm.general_plugin:slip": "blocked by its group: there is none called "
            f"vllm.general_plugin; did you mean {GENERAL}?"
            for name in ("alpha", "beta")
        },
    }
    assert rows[f"beta:{GENERAL}:beta"]["hooks"] == ["register_by_call"]

    shown = plugins("show", "beta")
    assert trace.read_text() == "alpha beta "
    assert f"model 'Same' -> not registered (yielded to alpha:{GENERAL}:alpha)" in shown
