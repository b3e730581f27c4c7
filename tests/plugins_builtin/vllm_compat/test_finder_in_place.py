"""When the finder is in place: before the first import that may need it, and otherwise never."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hookserve.hookspecs import Host, PluginError, PluginSettings
from hookserve.plugins_builtin.vllm_compat import finder
from plugin_folder import install_plugin

LOOK = (
    "import sys; from hookserve.hookspecs import bootstrap, PluginSettings;"
    "host = bootstrap(['front', 'engine', 'worker'], PluginSettings({settings}));"
    "print('vllm' in sys.modules, "
    "any(type(each).__name__ == 'FacadeFinder' for each in sys.meta_path), "
    "'hookserve.plugins_builtin.vllm_compat.adapter' in sys.modules, host.problems())"
)


def look(site: Path, settings: str = "", before: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + LOOK.format(settings=settings)],
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip() or done.stderr


def test_a_process_without_such_a_plugin_has_no_finder_and_pays_nothing(tmp_path: Path) -> None:
    assert look(tmp_path) == "False False False []"


def test_a_process_of_somebody_elses_never_meets_the_package(tmp_path: Path) -> None:
    install_plugin(tmp_path, "toy", {"toy": ""}, group="vllm.general_plugins")
    code = (
        "import importlib.metadata as m, importlib.util as u, hookserve, hookserve.hookspecs;"
        "print(u.find_spec('vllm'), [d for d in m.distributions() if d.name == 'vllm'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "None []", done.stderr


def test_an_entry_point_brings_it_and_a_file_of_the_operators_too(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from vllm import ModelRegistry\nfrom hookserve.hookspecs import hookimpl\n"
        "@hookimpl\ndef register_model(): pass\n"
    )
    assert look(tmp_path, f"files=({str(plugin)!r},)") == "True True True []"
    install_plugin(
        tmp_path,
        "toy",
        {"toy": "def register(): pass"},
        entries={"toy": "toy:register"},
        group="vllm.general_plugins",
    )
    assert look(tmp_path) == "False True True []"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """In a process that has not got ready for such code so far."""
    monkeypatch.syspath_prepend(str(tmp_path))
    others = [each for each in sys.meta_path if not isinstance(each, finder.FacadeFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    before = set(sys.modules)
    yield Host(["front", "engine", "worker"], PluginSettings(allow=()))
    for name in [name for name in set(sys.modules) - before if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.mark.checklist(128)
def test_a_class_that_the_operator_names_finds_the_package(host: Host, tmp_path: Path) -> None:
    (tmp_path / "their.py").write_text("from vllm import ModelRegistry\nclass Mine: pass\n")
    assert finder.installed() is None
    host.registry("scheduler").names()
    host.adapters.import_path("hookserve.engine.config:EngineConfig")
    assert finder.installed() is None, "a class of the host's own needs nothing"
    assert host.registry("scheduler").resolve("their:Mine").__name__ == "Mine"
    assert finder.installed() is not None


def test_what_such_a_class_misses_is_told_with_its_place(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "lacking.py"
    file.write_text("\nfrom vllm.no_such import Thing\nclass Mine: pass\n")
    told = f"vllm.no_such is not served here ({file}:2); see docs/vllm-plugins.md"
    with pytest.raises(PluginError) as raised:
        host.registry("scheduler").resolve("lacking:Mine")
    assert told in str(raised.value)
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


SOMEBODY_ELSES = (
    "import sys, types; other = types.ModuleType('vllm'); other.__file__ = '/other/vllm.py';"
    "sys.modules['vllm'] = other; user = types.ModuleType('user'); user.llm = other;"
    "sys.modules['user'] = user;"
)


def test_another_package_of_the_name_that_is_already_imported_stops_the_start(
    tmp_path: Path,
) -> None:
    install_plugin(
        tmp_path,
        "toy",
        {"toy": "def register(): pass"},
        entries={"toy": "toy:register"},
        group="vllm.general_plugins",
    )
    said = look(tmp_path, before=SOMEBODY_ELSES)
    assert "HostError: another package 'vllm' is already imported" in said
    assert "from /other/vllm.py" in said and "used by: __main__, user;" in said
    assert look(tmp_path, "no_plugins=True", SOMEBODY_ELSES).startswith("True False True")
