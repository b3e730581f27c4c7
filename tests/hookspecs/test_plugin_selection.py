"""Entries of the lists: what they mean, and what the lists do before anything is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Denied, PluginSelectionError, PluginSettings, hookimpl
from hookserve.hookspecs.plugin import Facts, Plugin
from hookserve.hookspecs.preferences import read_preferences
from hookserve.hookspecs.selection import apply_settings, select
from plugin_folder import install_plugin


def installed(distribution: str, name: str, **facts: Any) -> Plugin:
    return Plugin(
        identity=f"{distribution}:hookserve:{name}",
        name=name,
        group="hookserve",
        load=lambda: None,
        distribution=distribution,
        file=f"/{distribution}/{name}.py",
        facts=Facts(**facts),
    )


def builtin(name: str, *, essential: bool = False) -> Plugin:
    return Plugin(
        identity=f"hookserve:builtin:{name}",
        name=name,
        group="builtin",
        load=lambda: None,
        distribution="hookserve",
        facts=Facts(essential=essential),
    )


def given(name: str) -> Plugin:
    return Plugin(identity=f"file:{name}", name=name, group="file", load=lambda: None)


@pytest.fixture
def plugins() -> list[Plugin]:
    return [
        builtin("models"),
        builtin("cpu", essential=True),
        installed("toy-one", "shared"),
        installed("toy-two", "shared"),
        installed("toy-two", "alone"),
        given("hello"),
    ]


def states(plugins: list[Plugin]) -> dict[str, str]:
    return {
        plugin.identity: plugin.reason if plugin.state == "blocked" else plugin.state
        for plugin in plugins
    }


@pytest.mark.parametrize(
    ("entry", "identity"),
    [
        ("alone", "toy-two:hookserve:alone"),
        ("  alone ", "toy-two:hookserve:alone"),
        ("toy-two/shared", "toy-two:hookserve:shared"),
        ("Toy_Two/shared", "toy-two:hookserve:shared"),
        ("hookserve:alone", "toy-two:hookserve:alone"),
        ("toy.one:hookserve:shared", "toy-one:hookserve:shared"),
        ("builtin:models", "hookserve:builtin:models"),
        ("hookserve/models", "hookserve:builtin:models"),
        ("file:hello", "file:hello"),
    ],
)
def test_each_form_of_an_entry_finds_its_plugin(
    entry: str, identity: str, plugins: list[Plugin]
) -> None:
    assert select(entry, plugins, "--plugins").identity == identity


def test_an_ambiguous_entry_lists_both(plugins: list[Plugin]) -> None:
    with pytest.raises(PluginSelectionError) as raised:
        select("shared", plugins, "--plugins")
    for word in ("--plugins", "toy-one:hookserve:shared", "toy-two:hookserve:shared"):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ("alnoe", "alone"),
        ("toy-two:hookserve:alnoe", "toy-two:hookserve:alone"),
        ("toy-two", "toy-two/shared, toy-two/alone"),
    ],
)
def test_an_entry_that_fits_nothing_names_the_nearest(
    entry: str, hint: str, plugins: list[Plugin]
) -> None:
    with pytest.raises(PluginSelectionError) as raised:
        select(entry, plugins, "--disable-plugins")
    assert f"'{entry}'" in str(raised.value)
    assert hint in str(raised.value)
    assert raised.value.exit_code == 78


def test_the_allow_list_speaks_of_installed_third_parties_alone(plugins: list[Plugin]) -> None:
    apply_settings(plugins, PluginSettings(allow=("alone",)))
    assert states(plugins) == {
        "hookserve:builtin:models": "found",
        "hookserve:builtin:cpu": "found",
        "toy-one:hookserve:shared": "--plugins",
        "toy-two:hookserve:shared": "--plugins",
        "toy-two:hookserve:alone": "found",
        "file:hello": "found",
    }


def test_an_empty_allow_list_means_none_and_no_list_means_all(plugins: list[Plugin]) -> None:
    apply_settings(plugins, PluginSettings(allow=None))
    assert set(states(plugins).values()) == {"found"}
    apply_settings(plugins, PluginSettings(allow=("", " ")))
    assert states(plugins)["toy-two:hookserve:alone"] == "--plugins"


def test_deny_wins_over_allow_and_reaches_built_ins(plugins: list[Plugin]) -> None:
    apply_settings(plugins, PluginSettings(allow=("alone",), deny=("alone", "models")))
    assert states(plugins)["toy-two:hookserve:alone"] == "--disable-plugins"
    assert states(plugins)["hookserve:builtin:models"] == "--disable-plugins"


def test_an_essential_built_in_cannot_be_disabled(plugins: list[Plugin]) -> None:
    with pytest.raises(PluginSelectionError, match="cpu is essential"):
        apply_settings(plugins, PluginSettings(deny=("cpu",)))


def test_no_plugins_leaves_the_built_ins(plugins: list[Plugin]) -> None:
    plugins = [plugin for plugin in plugins if not plugin.is_explicit]
    apply_settings(plugins, PluginSettings(no_plugins=True))
    assert {i for i, state in states(plugins).items() if state == "found"} == {
        "hookserve:builtin:models",
        "hookserve:builtin:cpu",
    }


def test_no_plugins_and_a_plugin_contradict_one_another(plugins: list[Plugin]) -> None:
    with pytest.raises(PluginSelectionError, match="file:hello was asked for"):
        apply_settings(plugins, PluginSettings(no_plugins=True))


def test_a_required_plugin_that_is_blocked_is_a_contradiction(plugins: list[Plugin]) -> None:
    with pytest.raises(PluginSelectionError, match="blocked by --disable-plugins"):
        apply_settings(plugins, PluginSettings(deny=("alone",), require=("alone",)))
    assert not plugins[4].required


def test_configuration_reaches_the_plugin_that_it_names(plugins: list[Plugin]) -> None:
    apply_settings(plugins, PluginSettings(config={"toy-two/alone": {"depth": 3}}))
    assert plugins[4].config == {"depth": 3}
    assert plugins[3].config == {}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"alnoe": {}}, "did you mean alone"),
        ({"alone": {}, "toy-two/alone": {}}, "both mean toy-two:hookserve:alone"),
        ({"alone": 3}, "'alone' must be an object"),
    ],
)
def test_configuration_that_fits_nothing_is_refused(
    config: dict[str, Any], words: str, plugins: list[Plugin]
) -> None:
    with pytest.raises(PluginSelectionError, match=words):
        apply_settings(plugins, PluginSettings(config=config))


def test_what_failed_elsewhere_is_out_here_with_the_reason(plugins: list[Plugin]) -> None:
    denied = Denied("toy-two:hookserve:alone", "engine", "run", "OSError: only there")
    apply_settings(plugins, PluginSettings(denied=(denied,)))
    plugin = plugins[4]
    assert (plugin.state, plugin.stage, plugin.error) == ("out", "run", "OSError: only there")
    assert plugin.reason == "it failed in the engine process"


def test_a_preference_is_read_by_kind_and_name(plugins: list[Plugin]) -> None:
    chosen = read_preferences([" model:A:B=toy-two/alone"], plugins)
    assert chosen == {"model": {"A:B": plugins[4]}}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("model:A", "not of the form KIND:NAME=IDENTITY"),
        ("A=alone", "not of the form KIND:NAME=IDENTITY"),
        ("modle:A=alone", "unknown kind 'modle'; did you mean model"),
        ("model:A=alnoe", "did you mean alone"),
        ("stat_logger:A=alone", "'stat_logger' is not chosen by name: every one of them is used"),
        ("model:A=alone,model:A=hello", "model:A is given to toy-two:hookserve:alone and to file:"),
    ],
)
def test_a_preference_that_fits_nothing_is_refused(
    entry: str, words: str, plugins: list[Plugin]
) -> None:
    with pytest.raises(PluginSelectionError, match=words):
        read_preferences(entry.split(","), plugins)


@pytest.mark.parametrize(
    "settings",
    [{"no_plugins": True}, {"allow": ()}, {"deny": ("sel_blocked",)}],
    ids=["none", "allow", "deny"],
)
def test_a_blocked_plugin_is_never_imported(
    settings: dict[str, Any], site: Path, make_host: Any
) -> None:
    install_plugin(site, "blocked-dist", {"sel_blocked": "raise SystemExit('imported')"})
    (line,) = [line for line in make_host(**settings).problems() if "sel_blocked" in line]
    assert line.startswith("blocked-dist:hookserve:sel_blocked is blocked by --")
    assert "sel_blocked" not in sys.modules


def test_a_plugin_of_other_roles_is_not_imported(site: Path, make_host: Any) -> None:
    install_plugin(
        site, "role-dist", {"sel_role": "raise SystemExit(3)"}, toml="roles = ['worker']"
    )
    (report,) = [r for r in make_host(roles=["front"]).describe() if r.name == "sel_role"]
    assert (report.state, report.reason) == ("other role", "runs in worker")
    assert "sel_role" not in sys.modules


def test_a_plugins_hooks_run_in_its_roles_alone(site: Path, make_host: Any) -> None:
    """It is loaded for its own role; a hook of another role in the same process is not called."""
    source = """
    from hookserve.hookspecs import ModelEntry, Named, hookimpl

    @hookimpl
    def executor():
        raise AssertionError("not an engine's plugin")

    @hookimpl
    def register_model():
        return ModelEntry("RoleForCausalLM", "role.model:Model")
    """
    install_plugin(site, "hook-dist", {"sel_hook": source}, toml="roles = ['worker']")
    host = make_host(roles=["engine", "worker"])
    assert host.problems() == []
    assert host.registry("model").names() == ["RoleForCausalLM"]


def test_a_marker_of_pluggy_itself_is_accepted(make_host: Any) -> None:
    import pluggy

    class Plain:
        @pluggy.HookimplMarker("hookserve")
        def platform(self) -> None: ...

        @hookimpl
        def shutdown(self, roles: Any) -> None: ...

    (report,) = make_host(Plain()).describe()
    assert [hook.name for hook in report.hooks] == ["platform", "shutdown"]
