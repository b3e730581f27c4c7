"""Which release of vLLM each plugin is shown, by every way in which plugins ask."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Host, HostError, PluginSettings
from hookserve.plugins_builtin.vllm_compat.presented_version import newest
from plugin_folder import install_plugin

GENERAL = "vllm.general_plugins"
pytestmark = pytest.mark.usefixtures("vllm_facade")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


GUARDS = """
import importlib.metadata
import importlib.metadata as md
import importlib.util
from importlib.metadata import version

import vllm
from vllm import __version__ as from_package
from vllm.version import __version__ as from_module

at_import = [from_package, from_module, version("vllm")]

def ask():
    return version("vllm"), vllm.__version__

def register():
    from packaging.version import parse
    import vllm.version
    global seen
    seen = {
        "attribute": vllm.__version__,
        "parsed": parse(vllm.__version__).release,
        "tuple": vllm.__version_tuple__[:2],
        "module": vllm.version.__version__,
        "metadata": importlib.metadata.version("vllm"),
        "distribution": md.distribution("vllm").version,
        "requires": md.requires("vllm"),
        "found": importlib.util.find_spec("vllm.model_executor") is not None,
        "lacking": importlib.util.find_spec("vllm.no_such") is None,
        "hasattr": (hasattr(vllm, "SamplingParams"), hasattr(vllm, "NoSuchThing")),
    }
    try:
        from vllm.no_such import Old
    except ImportError:
        from vllm import ModelRegistry as Old
    if parse(vllm.__version__) < parse(LOWEST) or vllm.__version_tuple__ > HIGHEST:
        raise RuntimeError(f"needs another vllm than {vllm.__version__}")
"""


def install(site: Path, name: str, wanted: str, lowest: str, highest: tuple[int, ...]) -> None:
    source = f"LOWEST, HIGHEST = {lowest!r}, {highest!r}\n{GUARDS}"
    install_plugin(
        site,
        name,
        {name: source},
        groups={GENERAL: {name: f"{name}:register"}},
        extra_metadata=f"Requires-Dist: vllm{wanted}\n" if wanted else "",
    )


def seen_by(name: str) -> dict[str, Any]:
    module = sys.modules[name]
    seen: dict[str, Any] = module.seen
    return {**seen, "at import": module.at_import}


def expected(version: str) -> dict[str, Any]:
    numbers = tuple(map(int, version.split(".")))
    return {
        "attribute": version,
        "parsed": numbers,
        "tuple": numbers[:2],
        "module": version,
        "metadata": version,
        "distribution": version,
        "requires": None,
        "found": True,
        "lacking": True,
        "hasattr": (True, False),
        "at import": [version] * 3,
    }


def test_guards_of_every_kind_are_met_at_once_by_plugins_of_different_releases(
    site: Path,
) -> None:
    install(site, "old", ">=0.12,<0.17", "0.12.0", (0, 16, 9))
    install(site, "exact", "[flashinfer]==0.27.1; extra == 'vllm'", "0.27.1", (0, 27, 1))
    install(site, "any", "", "0.32.0", (0, 32, 0))
    host = Host(["front", "engine", "worker"], PluginSettings())
    assert host.problems() == []
    assert seen_by("old") == expected("0.16.0")
    assert seen_by("exact") == expected("0.27.1")
    assert seen_by("any") == expected("0.32.0")
    assert importlib.metadata.version("vllm") == "0.32.0", "asked by nobody's code"
    assert sys.modules["exact"].ask() == ("0.27.1", "0.27.1"), "called by nobody's code"
    old = next(plugin for plugin in host.plugins if plugin.name == "old")
    with host.enter(old):
        assert importlib.metadata.version("vllm") == "0.16.0"
        assert sys.modules["exact"].ask() == ("0.27.1", "0.27.1"), "called by another's code"


def test_a_plugin_with_a_damaged_list_of_files_is_shown_its_own_release(site: Path) -> None:
    install(site, "damaged", "<0.11", "0.10.0", (0, 11))
    (record,) = site.glob("damaged-*/RECORD")
    record.write_bytes(b"\xe9.py,,\n")
    Host(["front"], PluginSettings())
    assert seen_by("damaged") == expected("0.10.0")


def test_the_operator_may_show_a_plugin_another_release(site: Path) -> None:
    install(site, "guarded", "", "0.19", (0, 19, 9))
    identity = f"guarded:{GENERAL}:guarded"
    (problem,) = Host(["front"], PluginSettings()).problems()
    assert "RuntimeError: needs another vllm than 0.32.0" in problem
    del sys.modules["guarded"]
    section = {identity: {"presented_version": "0.19.1"}}
    assert Host(["front"], PluginSettings(config=section)).problems() == []
    assert seen_by("guarded") == expected("0.19.1")
    wrong = {identity: {"presented_version": "new"}}
    with pytest.raises(HostError, match="presented_version"):
        Host(["front"], PluginSettings(config=wrong))
    with pytest.raises(HostError, match="unknown key 'version'"):
        Host(["front"], PluginSettings(config={identity: {"version": "0.19.1"}}))


def test_a_requirement_that_nothing_meets_is_told(site: Path) -> None:
    install(site, "newer", ">=0.33", "0.1", (0, 32, 0))
    host = Host(["front"], PluginSettings())
    assert seen_by("newer")["attribute"] == "0.32.0"
    assert any("requires vllm >=0.33" in line and "newer" in line for line in host.warnings)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (["<0.30.0,>=0.29.0"], "0.29.0"),
        ([">=0.8", "==0.31.0"], "0.31.0"),
        (["<0.28.1,>=0.26.0"], "0.28.0"),
        (["!=0.25.0,!=0.29.*,!=0.30.*,<=0.31.0,>=0"], "0.31.0"),
        (["~=0.15.1"], "0.15.1"),
        (["==0.29.*"], "0.29.0"),
        ([">=0.32.0rc1"], "0.32.0"),
        (["!=0.32.0,>=0.32.0rc1.dev283"], None),
        (["nonsense"], None),
        (["", ""], "0.32.0"),
    ],
)
def test_the_newest_release_that_a_requirement_allows(wanted: list[str], shown: str | None) -> None:
    assert newest(wanted) == shown


def test_the_record_is_a_distribution_without_files_of_its_own(site: Path) -> None:
    found = importlib.metadata.distribution("vLLM")
    assert (found.metadata["Name"], list(found.entry_points), found.files) == ("vllm", [], None)
    assert "vllm" in importlib.metadata.packages_distributions()
    assert importlib.metadata.packages_distributions()["vllm"] == ["vllm"]


def test_the_real_distribution_beside_us_stays_as_it_is_and_is_not_asked(site: Path) -> None:
    install_plugin(
        site,
        "vllm",
        {"vllm": "raise RuntimeError('the real one')"},
        groups={GENERAL: {"theirs": "vllm:theirs"}},
        version="0.11.0",
        files={"vllm/model_security.py": ""},
    )
    install(site, "any", "", "0.32.0", (0, 32, 0))
    files = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    host = Host(["front"], PluginSettings())
    assert host.problems() == []
    assert [each.name for each in host.plugins if each.adapter] == ["any"]
    assert importlib.metadata.version("vllm") == "0.32.0"
    assert not list(importlib.metadata.distribution("vllm").entry_points)
    assert importlib.util.find_spec("vllm.model_security") is None
    now = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert {path: text for path, text in now.items() if "__pycache__" not in str(path)} == files
