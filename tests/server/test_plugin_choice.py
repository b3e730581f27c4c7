"""What an operator writes about plugins, and what comes of it: lists, preferences, names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Host, PluginConflictError, PluginSelectionError
from hookserve.server.cli import main
from hookserve.server.settings import resolve_settings
from plugin_folder import install_plugin

ONE_HOOK = """
from hookserve.hookspecs import hookimpl

@hookimpl
def process_started():
    pass
"""
CLAIM = """
from hookserve.hookspecs import ModelEntry, hookimpl

@hookimpl
def register_model():
    return ModelEntry("LlamaForCausalLM", "{name}:Own")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HOOKSERVE_CACHE", str(tmp_path / "cache"))
    yield folder
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def active(given: dict[str, Any], environ: dict[str, str]) -> set[str]:
    """Which of the plugins that a test installs are at work under these settings."""
    settings = resolve_settings(given, {"HOOKSERVE_CACHE": "/nowhere", **environ})
    host = Host(["front"], settings.plugins)
    return {p.name for p in host.plugins if p.name.startswith("choice_") and p.state == "active"}


BOTH = {"choice_a", "choice_b"}


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        ({}, {}, BOTH),
        ({"HOOKSERVE_PLUGINS": ""}, {}, set()),
        ({"HOOKSERVE_PLUGINS": "  "}, {}, set()),
        ({"HOOKSERVE_PLUGINS": "choice_a"}, {}, {"choice_a"}),
        ({"HOOKSERVE_PLUGINS": " choice_a , hookserve:choice_b,"}, {}, BOTH),
        ({"HOOKSERVE_PLUGINS": "choice_a"}, {"plugins": [""]}, set()),
        ({"HOOKSERVE_PLUGINS": ""}, {"plugins": ["choice-dist/choice_b"]}, {"choice_b"}),
        ({"HOOKSERVE_DISABLE_PLUGINS": "choice_b"}, {}, {"choice_a"}),
        (
            {"HOOKSERVE_PLUGINS": "choice_a,choice_b"},
            {"disable_plugins": ["choice-dist:hookserve:choice_a"]},
            {"choice_b"},
        ),
        ({"HOOKSERVE_NO_PLUGINS": "1"}, {}, set()),
        ({}, {"no_plugins": True}, set()),
    ],
)
def test_plugins_can_be_switched_off_and_unset_is_not_empty(
    environ: dict[str, str], given: dict[str, Any], expected: set[str], site: Path
) -> None:
    install_plugin(site, "choice-dist", {"choice_a": ONE_HOOK, "choice_b": ONE_HOOK})
    assert active(given, environ) == expected


@pytest.mark.parametrize("flag", ["plugins", "disable_plugins", "require_plugins"])
def test_an_entry_of_a_list_that_fits_nothing_is_an_error_with_the_nearest(
    flag: str, site: Path
) -> None:
    install_plugin(site, "choice-dist", {"choice_a": ONE_HOOK})
    with pytest.raises(PluginSelectionError, match="did you mean choice_a"):
        active({flag: ["choice_aa"]}, {})


def test_the_allow_list_says_that_built_ins_are_none_of_its_business(site: Path) -> None:
    with pytest.raises(PluginSelectionError, match="'models' is built in, and --plugins speaks of"):
        active({"plugins": ["models"]}, {})


@pytest.mark.parametrize("names", [("one_claims", "two_claims"), ("two_claims", "one_claims")])
def test_two_plugins_of_one_architecture_never_win_by_chance(
    names: tuple[str, str], site: Path
) -> None:
    for name in names:
        install_plugin(site, f"{name}-dist", {name: CLAIM.format(name=name)})
    one, two = (f"{name}-dist:hookserve:{name}".replace("_", "-", 1) for name in sorted(names))
    with pytest.raises(PluginConflictError) as caught:
        Host(["engine"], resolve_settings({}, {}).plugins)
    assert f"is claimed by {one} (" in str(caught.value)
    assert f"--prefer model:LlamaForCausalLM={two}" in str(caught.value)
    prefer = [f"model:LlamaForCausalLM={two}"]
    host = Host(["engine"], resolve_settings({"prefer": prefer}, {}).plugins)
    claim = host.registry("model").get("LlamaForCausalLM")
    assert claim is not None and claim.owner == two
    states = {c.owner: c.state for c in host.registry("model").all_claims() if c.name == claim.name}
    assert states[one] == f"yielded to {two}"
    assert states["hookserve:builtin:models"] == f"overridden by {two}"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "model:LlamaForCausaLM=one_claims",
            "--prefer: nobody declares model 'LlamaForCausaLM'; did you mean LlamaForCausalLM",
        ),
        (
            "model:LlamaForCausalLM=choice_a",
            "choice-dist:hookserve:choice_a does not declare model 'LlamaForCausalLM'; "
            "one-claims-dist:hookserve:one_claims and hookserve:builtin:",
        ),
    ],
)
def test_a_preference_that_decides_nothing_is_an_error(entry: str, said: str, site: Path) -> None:
    install_plugin(site, "one-claims-dist", {"one_claims": CLAIM.format(name="one_claims")})
    install_plugin(site, "choice-dist", {"choice_a": ONE_HOOK})
    with pytest.raises(PluginSelectionError) as caught:
        Host(["engine"], resolve_settings({"prefer": [entry]}, {}).plugins)
    assert said in str(caught.value)


def test_a_preference_for_what_is_blocked_stops_no_start(site: Path) -> None:
    install_plugin(site, "choice-dist", {"choice_a": ONE_HOOK})
    given = {"prefer": ["model:Any=choice_a"], "disable_plugins": ["choice_a"]}
    host = Host(["engine"], resolve_settings(given, {}).plugins)
    assert [plugin.state for plugin in host.plugins if plugin.name == "choice_a"] == ["blocked"]


OWN_PLATFORM = """
from hookserve.hookspecs import hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

class Own(CpuPlatform):
    pass

@hookimpl
def platform():
    return "own_platform:Own"
"""


def test_two_platforms_that_both_say_me_need_a_flag_and_one_beats_the_built_in(
    site: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("npu", "xpu"):
        source = OWN_PLATFORM.replace("own_platform", f"own_{name}")
        install_plugin(site, f"{name}-dist", {f"own_{name}": source})
    npu, xpu = (f"{name}-dist:hookserve:own_{name}" for name in ("npu", "xpu"))
    words = ["run", str(tiny_llama), "--dry-run"]
    assert main(words) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert npu in last and xpu in last and "--platform" in last
    for given, expected in (
        (["--platform", "own_xpu"], f"own_xpu:Own of {xpu}"),
        (["--platform", "xpu-dist/own_xpu"], f"own_xpu:Own of {xpu}"),
        (["--platform", "cpu"], "CpuPlatform of hookserve:builtin:cpu"),
        (["--disable-plugins", "own_xpu"], f"own_npu:Own of {npu}"),
    ):
        assert main([*words, *given]) == 0, given
        assert expected in capsys.readouterr().out, given


def test_names_that_plugins_register_are_judged_after_the_plugins_are_loaded(
    site: Path, tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "own_platform.py").write_text(OWN_PLATFORM)
    words = ["run", str(tiny_llama), "--dry-run", "--plugin", "own_platform"]
    kinds = ["--load-format", "mine", "--distributed-executor-backend", "own_platform:Executor"]
    assert main([*words, *kinds, "--platform", "own_platform"]) == 0
    assert "own_platform:Own of file:own_platform" in capsys.readouterr().out
    assert main([*words, "--platform", "own_platfrom"]) == 78
    assert "did you mean own_platform" in capsys.readouterr().err
