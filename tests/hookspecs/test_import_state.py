"""What a process imports for its plugins, seen from outside: real distributions, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from plugin_folder import install_plugin

SOURCE = """
from hookserve.hookspecs import Endpoint, ModelEntry, hookimpl

@hookimpl
def register_model():
    return ModelEntry("ToyForCausalLM", "state_toy.model:Toy")
"""

SCRIPT = """
import json, sys
import msgspec

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "starlette", "transformers"):
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
from hookserve.hookspecs import PluginSettings, bootstrap
roles, settings = json.loads(sys.argv[1])
host = bootstrap(roles, msgspec.convert(settings, PluginSettings))
print(json.dumps({
    "states": {report.identity: report.state for report in host.describe()},
    "problems": host.problems(),
    "modules": sorted(sys.modules),
    "models": [[claim.name, claim.owner] for claim in host.registry("model").claims()],
    "platform": host.platform().name,
}))
"""


def boot(path: Path, roles: list[str], **settings: Any) -> dict[str, Any]:
    """What a process with these roles makes of the plugins on PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-P", "-c", SCRIPT, json.dumps([roles, settings])],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_built_ins_load_without_torch_in_front(tmp_path: Path) -> None:
    found = boot(tmp_path, ["front"])
    built_in = {i: s for i, s in found["states"].items() if i.startswith("hookserve:builtin:")}
    assert built_in["hookserve:builtin:cpu"] == "active"
    assert found["platform"] == "cpu"
    assert set(built_in.values()) <= {"active", "other role"}, found["problems"]


def test_a_plugin_is_loaded_in_its_roles_and_its_target_in_none(tmp_path: Path) -> None:
    toml = "roles = ['engine', 'worker']"
    install_plugin(tmp_path, "state-dist", {"state_toy": SOURCE}, toml=toml)
    (tmp_path / "state_toy" / "model.py").write_text("raise AssertionError('imported')")
    front = boot(tmp_path, ["front"])
    assert front["states"]["state-dist:hookserve:state_toy"] == "other role"
    assert "state_toy" not in front["modules"]
    engine = boot(tmp_path, ["engine", "worker"])
    assert "state_toy" in engine["modules"]
    assert "state_toy.model" not in engine["modules"]
    assert ["ToyForCausalLM", "state-dist:hookserve:state_toy"] in engine["models"]


def test_what_was_denied_by_the_parent_is_not_imported(tmp_path: Path) -> None:
    install_plugin(tmp_path, "state-dist", {"state_toy": SOURCE})
    identity = "state-dist:hookserve:state_toy"
    denied = {"identity": identity, "process": "front", "stage": "run", "error": "OSError: x"}
    found = boot(tmp_path, ["engine", "worker"], denied=[denied])
    assert found["states"][identity] == "out"
    assert "state_toy" not in found["modules"]
    assert f"{identity} is out, failed at stage 'run': OSError: x" in found["problems"]


def test_the_order_is_the_same_in_every_run(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        source = SOURCE.replace("ToyForCausalLM", f"{name}ForCausalLM")
        install_plugin(tmp_path, f"{name}-dist", {f"state_{name}": source})
    runs = [boot(tmp_path, roles)["models"] for roles in (["front"], ["engine", "worker"])]
    ours = [[name for name, owner in models if "-dist:" in owner] for models in runs]
    assert ours == [["aForCausalLM", "bForCausalLM", "cForCausalLM"]] * 2
