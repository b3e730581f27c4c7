"""The parent decides about plugins, and the engine's process does what it was told: its own
environment says nothing, and each plugin's section arrives in it."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_engine import make_config
from hookserve.engine.channel import Channel
from hookserve.engine.child_process import describe_failure, module_command, spawn
from hookserve.engine.errors import ConfigError, WorkerError
from hookserve.engine.messages import Failed, ManifestSent, Start
from hookserve.engine.worker_messages import StartWorker
from hookserve.hookspecs import Host, Manifest, PluginSettings, compare_manifests
from hookserve.hookspecs.crash_mark import CrashMark
from hookserve.hookspecs.patch_owners import forget_patches, note_patch
from plugin_folder import install_plugin

SUPPORT = Path(__file__).parents[1] / "support"
OTHER_WISHES = {
    "HOOKSERVE_PLUGINS": "",
    "HOOKSERVE_DISABLE_PLUGINS": "kept",
    "HOOKSERVE_REQUIRE_PLUGINS": "gone",
    "HOOKSERVE_NO_PLUGINS": "1",
    "HOOKSERVE_PLUGIN": "/nowhere/at_all.py",
    "HOOKSERVE_PLUGIN_CONFIG": '{"kept": {"threshold": 9}}',
    "HOOKSERVE_PREFER": "model:X=nobody",
    "HOOKSERVE_PLATFORM": "abacus",
    "HOOKSERVE_ENDPOINTS": "nothing",
}
KEPT = """
import json
import msgspec
from hookserve.hookspecs import hookimpl

class Section(msgspec.Struct):
    threshold: float = 0.5
    file: str = ""

@hookimpl
def settings_schema():
    return Section

@hookimpl
def process_started(roles, ctx):
    with open(ctx.config.file, "a") as file:
        told = [sorted(roles), type(ctx.config).__name__, ctx.config.threshold]
        file.write(json.dumps(told) + "\\n")
"""
BLOCKED = """
raise RuntimeError("imported, though it is blocked")
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    install_plugin(site, "own-dist", {"kept": textwrap.dedent(KEPT)})
    install_plugin(site, "other-dist", {"gone": BLOCKED})
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("kept", None)


@pytest.fixture
def start(plugins: Path) -> Iterator[Callable[..., Channel]]:
    """``start(settings)``: an engine's process, whose environment wishes otherwise, is told to;
    ``start(settings, rank=0)``: a worker's."""
    started = []

    def spawn_one(settings: PluginSettings, rank: int | None = None) -> Channel:
        path = os.pathsep.join([str(plugins), str(SUPPORT)])
        environment = {**os.environ, **OTHER_WISHES, "PYTHONPATH": path}
        mark = CrashMark.create()
        module = "hookserve.engine.process" if rank is None else "hookserve.engine.worker_process"
        process, sock = spawn(module_command(module), environment, mark)
        channel = Channel(sock)
        started.append((process, channel, mark))
        if rank is None:
            channel.send(Start(make_config(), settings))
        else:
            channel.send(StartWorker(make_config(), settings, rank, "unused"))
        return channel

    yield spawn_one
    for process, channel, mark in started:
        channel.close()
        process.kill()
        process.wait()
        mark.close()


def receive(channel: Channel) -> Any:
    assert channel.wait(60.0), "the engine's process says nothing"
    return channel.recv()


def test_children_take_lists_and_sections_from_the_parent_and_not_from_their_environment(
    start: Callable[..., Channel], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    section = {"threshold": 3, "file": str(told)}
    settings = PluginSettings(
        allow=("kept", "gone"), deny=("gone",), require=("kept",), config={"own-dist/kept": section}
    )
    sent = receive(start(settings))
    assert isinstance(sent, ManifestSent), sent
    manifest = msgspec.convert(sent.manifest, Manifest)
    states = {plugin.identity: plugin.state for plugin in manifest.plugins}
    assert states["own-dist:hookserve:kept"] == "active"
    assert states["other-dist:hookserve:gone"] == "blocked"
    assert compare_manifests(Host(["front"], settings).manifest(), manifest) == []
    assert json.loads(told.read_text()) == [["engine", "worker"], "Section", 3.0]


def test_a_section_that_does_not_fit_stops_the_process_that_alone_knows_the_plugin(
    start: Callable[..., Channel], plugins: Path
) -> None:
    (plugins / "kept" / "hookserve.toml").write_text('roles = ["engine"]\n')
    settings = PluginSettings(allow=("kept",), config={"kept": {"treshold": 1}})
    (report,) = [r for r in Host(["front"], settings).describe() if r.name == "kept"]
    assert report.state == "other role"
    failed = receive(start(settings))
    assert isinstance(failed, Failed), failed
    assert failed.exit_code == 78
    assert failed.message == (
        "--plugin-config: the section of own-dist:hookserve:kept: unknown key 'treshold'; "
        "did you mean threshold?"
    )


def test_a_worker_tells_what_plugins_of_workers_changed(
    start: Callable[..., Channel], plugins: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = "import os\nos.environ['SET_BY_WORKER'] = '1'\n" + textwrap.dedent(KEPT)
    (plugins / "kept" / "__init__.py").write_text(changes)
    (plugins / "kept" / "hookserve.toml").write_text('roles = ["worker"]\n')
    settings = PluginSettings(allow=("kept",), config={"kept": {"file": os.devnull}})
    sent = receive(start(settings, rank=1))
    assert isinstance(sent, ManifestSent), sent
    line = "WARNING .* plugin own-dist:hookserve:kept: changed os.environ: SET_BY_WORKER\n"
    assert len(re.findall(line, capfd.readouterr().err)) == 1


def test_what_ends_a_process_tells_who_has_replaced_what_there() -> None:
    def mine() -> None:
        raise OSError("no")

    owner, place = "some:group:one", "hookserve.engine.worker:Worker.execute_model"
    note_patch(owner, place, mine)
    try:
        with pytest.raises(OSError, match="no") as caught:
            mine()
        raised = describe_failure(caught.value, "the engine").message
        later = describe_failure(WorkerError("it returned None"), "the engine").message
        settings = describe_failure(ConfigError("no such model"), "the engine").message
    finally:
        forget_patches(owner)
    whose = f"what plugin {owner} has put in the place of {place}"
    assert raised == f"the engine raised OSError: no; raised in {whose}"
    assert later == f"it returned None; it may come of {whose}"
    assert settings == "no such model"
