"""What is found, under which identity, with which facts; and that nothing is imported for it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookserve.hookspecs import (
    Host,
    PluginError,
    PluginSelectionError,
    PluginSettings,
    hookimpl,
)
from hookserve.hookspecs.discovery import builtin_plugins, discover, file_plugin, object_plugins
from hookserve.hookspecs.facts import FactsError
from hookserve.hookspecs.plugin import DEFAULT_ROLES, Plugin
from plugin_folder import install_plugin

LIVE = """
from hookserve.hookspecs import ModelEntry, hookimpl

@hookimpl
def register_model():
    return ModelEntry("{arch}ForCausalLM", "{arch}.model:Model")
"""


def by_identity(plugins: list[Plugin]) -> dict[str, Plugin]:
    return {plugin.identity: plugin for plugin in plugins}


def add_requirement(site: Path, distribution: str, line: str) -> None:
    (metadata,) = site.glob(f"{distribution}-*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + line + "\n")


# -- installed ----------------------------------------------------------------------------------


def test_entry_points_are_found_sorted_and_not_imported(site: Path, builtins: Any) -> None:
    install_plugin(site, "zeta-dist", {"disc_zeta": "raise SystemExit('imported')"})
    install_plugin(site, "Alpha.Dist", {"disc_alpha": "raise SystemExit('imported')"})
    found = [plugin for plugin in discover((), ()) if plugin.name.startswith("disc_")]
    assert [plugin.identity for plugin in found] == [
        "alpha-dist:hookserve:disc_alpha",
        "zeta-dist:hookserve:disc_zeta",
    ]
    assert (found[0].version, found[0].file) == ("1.0", str(site / "disc_alpha" / "__init__.py"))
    assert found[0].facts.roles == DEFAULT_ROLES
    assert not {"disc_zeta", "disc_alpha"} & sys.modules.keys()


def test_the_file_of_a_module_inside_a_package_is_known_without_importing_the_package(
    site: Path, builtins: Any
) -> None:
    install_plugin(
        site,
        "deep-dist",
        {"disc_deep": "raise SystemExit('imported')"},
        entries={"deep": "disc_deep.sub.plugin:instance"},
    )
    (site / "disc_deep" / "sub").mkdir()
    (site / "disc_deep" / "sub" / "plugin.py").write_text("")
    plugin = by_identity(discover((), ()))["deep-dist:hookserve:deep"]
    assert plugin.file == str(site / "disc_deep" / "sub" / "plugin.py")
    assert "disc_deep" not in sys.modules


def test_one_distribution_on_two_folders_of_the_path_is_one_plugin(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builtins: Any
) -> None:
    install_plugin(site, "twice-dist", {"disc_twice": LIVE.format(arch="twice")})
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.syspath_prepend(other)
    install_plugin(other, "twice-dist", {"disc_twice": LIVE.format(arch="twice")})
    found = [plugin for plugin in discover((), ()) if plugin.name == "disc_twice"]
    assert [plugin.file for plugin in found] == [str(other / "disc_twice" / "__init__.py")]


TOML = """
api = ">=1,<2"
roles = ["front", "engine"]
after = ["other/thing"]

[entry.disc_facts]
roles = ["worker"]
hooks = ["register_model"]
"""


def test_hookserve_toml_is_read_and_its_entry_table_wins(site: Path, builtins: Any) -> None:
    install_plugin(
        site,
        "facts-dist",
        {"disc_facts": "raise SystemExit('imported')"},
        entries={"disc_facts": "disc_facts", "plain": "disc_facts"},
        toml=TOML,
    )
    found = by_identity(discover((), ()))
    own = found["facts-dist:hookserve:disc_facts"].facts
    assert own.roles == {"worker"}
    assert own.hooks == ("register_model",)
    assert (own.api, own.after) == (">=1,<2", ("other/thing",))
    plain = found["facts-dist:hookserve:plain"].facts
    assert (plain.roles, plain.hooks) == ({"front", "engine"}, None)
    assert "disc_facts" not in sys.modules


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("api = '>=2'", ["wants hook API >=2", "1.0"]),
        ("api = 'two'", ["two", "cannot be read"]),
        ("api = 1", ["'api' must be text"]),
        ("rolse = ['front']", ["unknown key 'rolse'", "roles"]),
        ("roles = ['fornt']", ["unknown role 'fornt'", "front"]),
        ("roles = []", ["'roles' is empty"]),
        ("essential = true", ["unknown key 'essential'"]),
        ("before = 'x'", ["'before' must be a list"]),
        ("roles = [", ["not valid TOML"]),
        ("entry = 1", ["'entry' must be a table"]),
    ],
)
def test_a_bad_hookserve_toml_keeps_the_plugin_out_and_unimported(
    toml: str, words: list[str], site: Path, make_host: Any
) -> None:
    install_plugin(site, "bad-dist", {"disc_bad": "raise SystemExit('imported')"}, toml=toml)
    (report,) = [r for r in make_host().describe() if r.name == "disc_bad"]
    assert (report.state, report.stage) == ("out", "discover")
    for word in words:
        assert word in str(report.error), report.error
    assert "disc_bad" not in sys.modules


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ("hookserve", True),
        ("hookserve>=0.1", True),
        ("Hookserve[gpu] (>=0.1,<100) ; python_version > '3'", True),
        ("hookserve>=999", False),
        ("hookserve-extras>=999", True),
    ],
)
def test_without_a_range_the_distributions_requirement_counts(
    requirement: str, fits: bool, site: Path, builtins: Any
) -> None:
    install_plugin(site, "req-dist", {"disc_req": ""})
    add_requirement(site, "req_dist", f"Requires-Dist: {requirement}")
    plugin = by_identity(discover((), ()))["req-dist:hookserve:disc_req"]
    assert (plugin.fault is None) == fits, plugin.fault


# -- built in -----------------------------------------------------------------------------------


def test_the_built_ins_are_those_of_their_own_file_and_are_not_imported_to_be_found() -> None:
    found = by_identity(builtin_plugins())
    cpu = found["hookserve:builtin:cpu"]
    assert cpu.facts.essential
    assert cpu.file is not None and cpu.file.endswith("plugins_builtin/platforms.py")
    assert all(plugin.is_builtin for plugin in found.values())
    assert all(Path(str(plugin.file)).is_file() for plugin in found.values())


# -- files and modules --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["disc_hello.py", "disc-hello.py"])
def test_a_file_is_a_plugin_and_its_targets_can_name_it(
    name: str, tmp_path: Path, site: Path, make_host: Any
) -> None:
    text = LIVE.format(arch="disc_hello").replace("disc_hello.model", "disc_hello")
    (tmp_path / name).write_text(text + "\nclass Model: pass\n")
    host: Host = make_host(files=[str(tmp_path / name)])
    claim = host.registry("model").get("disc_helloForCausalLM")
    assert claim is not None
    assert claim.owner == f"file:{Path(name).stem}"
    assert host.registry("model").resolve("disc_helloForCausalLM").__name__ == "Model"


def test_a_target_in_a_module_that_is_not_there_is_told_with_the_plugins_own(
    tmp_path: Path, site: Path, make_host: Any
) -> None:
    """As one has it who saves an example under another name."""
    (tmp_path / "disc-copied.py").write_text(LIVE.format(arch="disc_example"))
    host: Host = make_host(files=[str(tmp_path / "disc-copied.py")])
    with pytest.raises(PluginError) as caught:
        host.registry("model").resolve("disc_exampleForCausalLM")
    own = "No module named 'disc_example'; the plugin's own module is disc_copied"
    assert str(caught.value).endswith(own)


@pytest.mark.parametrize(
    ("name", "words"),
    [("json.py", "would hide the module 'json'"), ("my.own.py", "is no name for a module")],
)
def test_a_file_whose_name_cannot_be_a_modules_is_refused(
    name: str, words: str, tmp_path: Path, site: Path, make_host: Any
) -> None:
    (tmp_path / name).write_text(LIVE.format(arch="x"))
    host: Host = make_host(files=[str(tmp_path / name)])
    (report,) = host.describe()
    assert (report.state, report.stage) == ("out", "import")
    assert words in str(report.error)


def test_a_module_is_a_plugin(site: Path, make_host: Any) -> None:
    (site / "disc_mod.py").write_text(LIVE.format(arch="mod"))
    host: Host = make_host(files=["disc_mod"])
    assert [claim.owner for claim in host.registry("model").claims()] == ["file:disc_mod"]


def test_the_same_module_installed_and_given_is_loaded_once(site: Path, make_host: Any) -> None:
    install_plugin(site, "both-dist", {"disc_both": LIVE.format(arch="both")})
    host: Host = make_host(files=["disc_both", "disc_both"])
    states = {r.identity: r.state for r in host.describe()}
    assert states == {"file:disc_both": "active", "both-dist:hookserve:disc_both": "superseded"}
    assert len(host.registry("model").all_claims()) == 1


def test_a_class_that_is_installed_and_given_is_made_once(site: Path, make_host: Any) -> None:
    source = (
        "from hookserve.hookspecs import hookimpl\nmade = []\nclass Plugin:\n"
        "    def __init__(self): made.append(self)\n"
        "    @hookimpl\n    def shutdown(self): ...\n"
    )
    install_plugin(site, "once-dist", {"disc_once": source}, entries={"once": "disc_once:Plugin"})
    host: Host = make_host(files=["disc_once:Plugin"])
    states = {r.identity: r.state for r in host.describe()}
    assert states == {"file:disc_once": "active", "once-dist:hookserve:once": "superseded"}
    assert len(sys.modules["disc_once"].made) == 1


def test_one_name_in_two_distributions_is_two_plugins_and_no_entry_for_either(
    site: Path, make_host: Any
) -> None:
    """Who means one of them by it is told both."""
    for dist in ("one", "two"):
        source = {f"disc_{dist}": LIVE.format(arch=dist)}
        install_plugin(site, f"{dist}-dist", source, entries={"disc_same": f"disc_{dist}"})
    both = ["one-dist:hookserve:disc_same", "two-dist:hookserve:disc_same"]
    found = {r.identity: r.state for r in make_host().describe()}
    assert found == dict.fromkeys(both, "active")
    for settings in ({"deny": ("disc_same",)}, {"config": {"disc_same": {}}}):
        with pytest.raises(PluginSelectionError, match=".*".join(both)):
            make_host(**settings)
    assert make_host(deny=("two-dist/disc_same",)).registry("model").names() == ["oneForCausalLM"]


def test_a_class_of_an_entry_point_is_called_with_its_instance(site: Path, make_host: Any) -> None:
    source = (
        "from hookserve.hookspecs import ModelEntry, hookimpl\n"
        "class Plugin:\n"
        "    arch = 'SelfForCausalLM'\n"
        "    @hookimpl\n"
        "    def register_model(self): return ModelEntry(self.arch, 'disc_self:Model')\n"
    )
    install_plugin(site, "self-dist", {"disc_self": source}, entries={"own": "disc_self:Plugin"})
    assert make_host().registry("model").names() == ["SelfForCausalLM"]


def test_a_distribution_without_its_metadata_is_out_alone(site: Path, make_host: Any) -> None:
    install_plugin(site, "good-dist", {"disc_good": LIVE.format(arch="good")})
    install_plugin(site, "gone-dist", {"disc_gone": LIVE.format(arch="gone")})
    (site / "gone_dist-1.0.dist-info" / "METADATA").unlink()
    states = {r.name: (r.state, r.stage, r.error) for r in make_host().describe()}
    assert states["disc_good"] == ("active", None, None)
    state, stage, error = states["disc_gone"]
    assert (state, stage) == ("out", "discover")
    assert "gone_dist-1.0.dist-info cannot be read" in str(error)
    assert "disc_gone" not in sys.modules


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("./no_such_file.py", r"there is no file /.*/no_such_file\.py"),
        ("no_such_module", r"no module is called 'no_such_module'; .* as \./no_such_module\.py"),
        ("./", "/.* is a folder; expected a file"),
        (".", r"no module is called '\.'$"),
    ],
)
def test_what_is_not_there_is_said(given: str, said: str) -> None:
    with pytest.raises(PluginSelectionError, match=f"--plugin: {said}"):
        file_plugin(given)


def test_two_files_of_one_name_are_told_apart_by_an_error(tmp_path: Path, builtins: Any) -> None:
    paths = [tmp_path / folder / "same.py" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("")
    with pytest.raises(PluginSelectionError, match=r"a/same\.py.*b/same\.py.*rename"):
        discover([str(path) for path in paths], ())


# -- objects ------------------------------------------------------------------------------------


class Observer:
    @hookimpl
    def request_finished(self, record: Any) -> None: ...


def test_the_same_object_twice_is_one_plugin_and_another_of_its_type_is_another() -> None:
    one, two = Observer(), Observer()
    found = object_plugins([one, one, two])
    assert [plugin.identity for plugin in found] == ["object:Observer", "object:Observer#2"]
    assert found[0].file == __file__


def test_a_module_given_as_object_is_called_after_itself() -> None:
    assert object_plugins([ModuleType("some.module")])[0].identity == "object:some.module"


def test_a_class_is_instantiated_once(make_host: Any) -> None:
    made = []

    class Counted:
        def __init__(self) -> None:
            made.append(self)

        @hookimpl
        def request_finished(self, record: Any) -> None: ...

        @hookimpl
        def shutdown(self, roles: Any) -> None: ...

    host: Host = make_host(Counted)
    host.close()
    assert len(made) == 1
    assert host.pm.get_plugin("object:Counted") is made[0]


def test_a_host_installation_without_its_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookserve.hookspecs.facts.FILE_NAME", "absent.toml")
    with pytest.raises(FactsError, match="install hookserve again"):
        builtin_plugins()


def test_an_unknown_role_of_the_process_is_refused() -> None:
    with pytest.raises(Exception, match=r"unknown role 'fornt'; did you mean front"):
        Host(["fornt"], PluginSettings())  # type: ignore[list-item]


def test_plugin_error_has_the_exit_code_of_a_configuration_error() -> None:
    assert PluginError("a", "import", "b").exit_code == 78
