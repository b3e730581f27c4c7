"""``VLLM_PLUGINS``: what it means for each group, and what is said where vLLM says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.offline_host import offline_settings
from hookserve.hookspecs import Host, PluginSelectionError, PluginSettings
from hookserve.hookspecs.discovery import find_plugins
from hookserve.server.settings import resolve_settings
from plugin_folder import install_package, write_metadata

pytestmark = pytest.mark.usefixtures("vllm_facade")

GROUPS = {
    "vllm.general_plugins": {"general": "mix:general", "other": "mix:other"},
    "vllm.platform_plugins": {"platform": "mix:platform"},
    "vllm.stat_logger_plugins": {"logger": "mix:Logger"},
    "vllm.endpoint_plugins": {"endpoint": "mix:Endpoint"},
    "vllm.logits_processors": {"processor": "mix:Processor"},
}


@pytest.fixture
def mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One distribution with an entry point of each group; nothing that could be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    write_metadata(tmp_path, "mix", GROUPS, [])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source_root: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install_package(tmp_path, source_root / "tests" / "toys" / "vllm_toy_plugin")


def listed(text: str | None, **settings: Any) -> PluginSettings:
    return PluginSettings(adapter_lists={} if text is None else {"vllm": text}, **settings)


def wanted(settings: PluginSettings) -> set[str]:
    return {each.name for each in find_plugins(settings) if each.adapter and each.state == "found"}


def said(settings: PluginSettings) -> list[str]:
    """What a front says of it that loads nothing."""
    return Host(["front"], settings, load=False).warnings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, {"general", "other", "platform", "logger", "processor"}),
        ("", {"processor"}),
        ("general", {"general", "processor"}),
        ("endpoint", {"endpoint", "processor"}),
        ("general,endpoint,platform", {"general", "endpoint", "platform", "processor"}),
        ("general, endpoint", {"general", "processor"}),
        ("General", {"processor"}),
        ("mix", {"processor"}),
        ("mix:vllm.general_plugins:general", {"processor"}),
        ("gen*", {"processor"}),
    ],
)
@pytest.mark.checklist(6, 7, 106, 110, 113, 114, 116, 117)
@pytest.mark.usefixtures("mix")
def test_the_list_means_for_each_group_what_it_means_for_vllm(
    text: str | None, names: set[str]
) -> None:
    assert wanted(listed(text)) == names


@pytest.mark.checklist(37)
@pytest.mark.usefixtures("mix")
def test_what_is_left_out_is_blocked_by_the_list() -> None:
    lines = Host(["front"], listed("general"), load=False).problems()

    reason = "is blocked by VLLM_PLUGINS, which does not name it"
    assert f"mix:vllm.general_plugins:other {reason}" in lines
    assert f"mix:vllm.endpoint_plugins:endpoint {reason}" in lines


@pytest.mark.checklist(105, 106)
@pytest.mark.usefixtures("toy")
def test_an_endpoint_that_nobody_named_is_told_with_both_ways_to_open_it() -> None:
    (line,) = said(listed(None))

    assert line.startswith("endpoints of vLLM's group are served only by name")
    assert "vllm-toy-plugin:vllm.endpoint_plugins:toy_endpoint is not" in line
    assert "--enable-endpoints toy_endpoint" in line and "VLLM_PLUGINS" in line


@pytest.mark.parametrize(
    "entry", ["endpoint", "mix/endpoint", "mix:vllm.endpoint_plugins:endpoint"]
)
@pytest.mark.usefixtures("mix")
def test_an_endpoint_is_opened_by_the_hosts_own_flag_too(entry: str) -> None:
    assert "endpoint" in wanted(listed(None, enable_endpoints=(entry,)))
    assert "endpoint" in wanted(listed("general", enable_endpoints=(entry,)))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("toy_register,toy_stat_logger,toy_endpoint", []),
        ("toy_register,toy_stat_logger,toy_endpoint,,", []),
        (" ", ["VLLM_PLUGINS is ' ', which names nobody"]),
        (
            "toy_register, toy_endpoint,toy_stat_logger",
            ["the entry ' toy_endpoint' has a space around it", "leaves out its toy_endpoint"],
        ),
        (
            "toy_registr",
            ["no entry point is called 'toy_registr'; did you mean toy_register"],
        ),
        (
            "zzz",
            ["called 'zzz'; there are: toy_endpoint, toy_register, toy_stat_logger"],
        ),
        (
            "Vllm_Toy.Plugin",
            ["it is a distribution, with toy_endpoint,toy_register,toy_stat_logger"],
        ),
        (
            "toy_register",
            [
                "VLLM_PLUGINS names toy_register of vllm-toy-plugin and leaves out its "
                "toy_endpoint,toy_stat_logger"
            ],
        ),
        (
            "toy_register,toy_stat_logger,toy_endpoint,lora_hf_hub_resolver",
            ["lora_hf_hub_resolver is one of vLLM's own finders of LoRA adapters"],
        ),
        ("cpu", ["hookserve:builtin:cpu is no plugin of vLLM's groups"]),
        ("vllm-toy-plugin/toy_register", ["entries are bare names: write toy_register"]),
    ],
)
@pytest.mark.checklist(7, 113, 115)
@pytest.mark.usefixtures("toy")
def test_an_entry_that_means_nobody_is_answered(text: str, lines: list[str]) -> None:
    found = said(listed(text))

    assert len(found) == len(lines), found
    for line, part in zip(found, lines, strict=True):
        assert part in line


def test_a_list_is_answered_where_nothing_is_installed() -> None:
    assert said(listed("toy_register")) == [
        "VLLM_PLUGINS: no entry point is called 'toy_register'; none is installed"
    ]


@pytest.mark.usefixtures("mix")
def test_logits_processors_are_told_to_stay() -> None:
    names = "general,other,platform,logger,endpoint"

    (line,) = said(listed(names))

    assert "does not rule the group vllm.logits_processors" in line
    assert "mix:vllm.logits_processors:processor is loaded" in line
    assert "processor" not in wanted(listed(names, deny=("processor",)))


@pytest.mark.checklist(120)
@pytest.mark.usefixtures("mix")
def test_the_hosts_own_list_rules_its_own_plugins_alone() -> None:
    everybody = wanted(listed(None))

    assert wanted(listed(None, allow=())) == everybody
    assert wanted(listed("general", allow=("other",))) == {"general", "processor"}
    lines = said(listed(None, allow=("other",)))
    assert any("--plugins neither lets it in" in line for line in lines)


@pytest.mark.usefixtures("mix")
def test_denying_wins_and_no_plugins_means_none() -> None:
    assert "general" not in wanted(listed("general", deny=("mix/general",)))
    assert wanted(listed("general", no_plugins=True)) == set()


@pytest.mark.usefixtures("mix")
def test_what_must_work_must_be_named() -> None:
    with pytest.raises(PluginSelectionError) as caught:
        find_plugins(listed("general", require=("other",)))

    assert "--require-plugins: mix:vllm.general_plugins:other is blocked by VLLM_PLUGINS" in str(
        caught.value
    )
    (plugin,) = [
        each for each in find_plugins(listed(None, require=("other",))) if each.name == "other"
    ]
    assert plugin.required


@pytest.mark.checklist(113, 116)
def test_the_variable_is_taken_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_settings({}, {"HOME": "/"}).plugins.adapter_lists == {}
    assert resolve_settings({}, {"HOME": "/", "VLLM_PLUGINS": ""}).plugins.adapter_lists == {
        "vllm": ""
    }
    monkeypatch.setenv("VLLM_PLUGINS", " a, b")
    assert resolve_settings({}).plugins.adapter_lists == {"vllm": " a, b"}
    assert offline_settings().adapter_lists == {"vllm": " a, b"}
