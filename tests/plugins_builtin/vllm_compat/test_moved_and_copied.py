"""What a release of vLLM does to plugins: helpers that moved, and functions that callers hold."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest

from hookserve.hookspecs import Host, PluginSettings
from hookserve.plugins_builtin.vllm_compat import surface
from hookserve.server.patch_audit import log_dead_patches
from plugin_folder import install_plugin

GENERAL = "vllm.general_plugins"
pytestmark = pytest.mark.usefixtures("vllm_facade")

MOVED = {
    "vllm.utils:cdiv": "vllm.utils.math_utils:cdiv",
    "vllm.utils:FlexibleArgumentParser": "vllm.utils.argparse_utils:FlexibleArgumentParser",
    "vllm.utils:direct_register_custom_op": "vllm.utils.torch_utils:direct_register_custom_op",
    "vllm.attention.layer:Attention": "vllm.model_executor.layers.attention:Attention",
    "vllm.model_executor.sampling_metadata:SamplingMetadata": (
        "vllm.v1.sample.metadata:SamplingMetadata"
    ),
    "vllm.transformers_utils.tokenizer:get_tokenizer": "vllm.tokenizers:get_tokenizer",
}
"""Older places of names, and where they are now."""


def at(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("older", MOVED)
def test_a_name_is_found_at_its_older_place_too(older: str) -> None:
    assert at(older) is at(MOVED[older])


OLDER = """
import vllm.attention.layer
import vllm.inputs.data

def register():
    import vllm.logits_process
"""


def test_a_plugin_that_uses_older_paths_is_told_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("old_one", "old_two"):
        entries = {GENERAL: {name: f"{name}:register"}}
        install_plugin(tmp_path, name, {name: OLDER}, groups=entries)
    install_plugin(
        tmp_path,
        "new_one",
        {"new_one": "import vllm.inputs\n\ndef register():\n    pass\n"},
        groups={GENERAL: {"new_one": "new_one:register"}},
    )
    host = Host(["front"], PluginSettings())
    told = [line for line in host.warnings if "older path" in line]
    assert told == [
        f"plugin old-one:{GENERAL}:old_one: imports vllm.attention, which vLLM has moved to "
        "vllm.model_executor.layers.attention and vllm.v1.attention.backend; the older path is "
        "served here, and so are others like it"
    ]


def test_no_module_is_served_through_the_older_path_of_another() -> None:
    homes = {
        name: vars(importlib.import_module(name)).get("__older_path_of__")
        for name in surface.modules()
    }
    older = {name for name, home in homes.items() if home is not None}
    assert len(older) > 10
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]
    for name in homes.keys() - older:
        importlib.import_module(name)
    assert older & sys.modules.keys() == set()


PATCHES = """
def register():
    from vllm.model_executor.layers import rotary_embedding
    import {name}.model
    rotary_embedding.get_rope = lambda *args, **kwargs: "mine"
"""
MODEL = """
from vllm.model_executor.layers.rotary_embedding import get_rope

def build():
    return get_rope(8, 64, True, {"rope_type": "default", "rope_theta": 10000.0})
"""


def test_a_function_that_its_callers_hold_is_told_when_its_patch_reached_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = "late_patch"
    install_plugin(
        tmp_path,
        name,
        {name: PATCHES.format(name=name)},
        groups={GENERAL: {name: f"{name}:register"}},
        files={f"{name}/model.py": MODEL},
    )
    host = Host(["front", "engine", "worker"], PluginSettings())
    caplog.set_level(logging.WARNING)

    assert sys.modules[f"{name}.model"].build() != "mine", "it holds the function from before"
    log_dead_patches([host.report()])
    (line,) = [line for line in caplog.messages if "nothing has called" in line]
    assert line.startswith(
        f"plugin {name.replace('_', '-')}:{GENERAL}:{name} replaced "
        "vllm.model_executor.layers.rotary_embedding:get_rope, and"
    )

    caplog.clear()
    assert at("vllm.model_executor.layers.rotary_embedding:get_rope")() == "mine"
    log_dead_patches([host.report()])
    assert not [line for line in caplog.messages if "nothing has called" in line]
