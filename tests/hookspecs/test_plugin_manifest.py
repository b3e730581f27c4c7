"""Two processes compared: what failed, and what no failure explains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hookserve.hookspecs import (
    Denied,
    Manifest,
    ModelEntry,
    PluginConflictError,
    compare_manifests,
    hookimpl,
)
from hookserve.hookspecs.manifest import NameEntry, PluginEntry

ONE = "one-dist:hookserve:one"
TWO = "two-dist:hookserve:two"


def plugin(identity: str = ONE, state: str = "active", **more: Any) -> PluginEntry:
    return PluginEntry(identity, more.pop("version", "1.0"), state, **more)


def manifest(
    process: str = "front",
    plugins: list[PluginEntry] | None = None,
    models: list[NameEntry] | None = None,
    **registries: list[NameEntry],
) -> Manifest:
    return Manifest(
        process,
        [process],
        [plugin()] if plugins is None else plugins,
        {"model": [NameEntry("X", ONE, "one:X")] if models is None else models, **registries},
    )


def test_equal_processes_have_nothing_to_decide() -> None:
    child = manifest("engine", executor=[NameEntry("uni", ONE, "one:Uni")])
    assert compare_manifests(manifest(endpoint=[]), child) == []


def test_what_failed_in_the_child_alone_is_denied_with_its_stage() -> None:
    failed = plugin(state="out", stage="run", error="OSError: only here")
    child = manifest("engine", plugins=[failed], models=[])
    assert compare_manifests(manifest(), child) == [
        Denied(ONE, "engine", "run", "OSError: only here")
    ]


def test_what_is_out_in_both_is_agreed() -> None:
    parent = manifest(plugins=[plugin(state="out", stage="import", error="x")], models=[])
    child = manifest("engine", plugins=[plugin(state="out", stage="import", error="x")], models=[])
    assert compare_manifests(parent, child) == []


def test_a_plugin_of_one_process_alone_by_its_roles_is_no_difference() -> None:
    parent = manifest(plugins=[plugin(state="other role")], models=[])
    assert compare_manifests(parent, manifest("engine", models=[])) == []


DIFFERENCES = [
    (manifest("engine", plugins=[]), [ONE, "front", "engine"]),
    (manifest("engine", plugins=[plugin(), plugin(TWO)]), [TWO, "engine"]),
    (manifest("engine", plugins=[plugin(version="1.1")]), [ONE, "1.0", "1.1"]),
    (manifest("engine", models=[NameEntry("X", ONE, "one:Y")]), ["model", "'X'", ONE, "one:Y"]),
    (manifest("engine", models=[NameEntry("X", TWO, "one:X")]), ["'X'", TWO]),
    (manifest("engine", models=[]), ["'X'", "only in the front process"]),
    (
        manifest("engine", models=[NameEntry("X", ONE, "one:X"), NameEntry("Y", ONE, "one:Y")]),
        ["'Y'", "only in the engine process"],
    ),
]


@pytest.mark.parametrize(("child", "words"), DIFFERENCES)
@pytest.mark.checklist(16)
def test_a_difference_that_no_failure_explains_stops(child: Manifest, words: list[str]) -> None:
    with pytest.raises(PluginConflictError) as raised:
        compare_manifests(manifest(), child)
    for word in words:
        assert word in str(raised.value)


def test_a_plugin_that_is_out_in_front_must_not_be_active_in_the_child() -> None:
    parent = manifest(plugins=[plugin(state="out", stage="run", error="x")], models=[])
    with pytest.raises(PluginConflictError, match="out in the front process and active in the"):
        compare_manifests(parent, manifest("engine"))


def test_an_object_of_one_process_is_no_difference_by_itself() -> None:
    parent = manifest(plugins=[plugin(), plugin("object:Observer")])
    assert compare_manifests(parent, manifest("engine")) == []


class Models:
    @hookimpl
    def register_model(self) -> list[ModelEntry]:
        return [ModelEntry("X", "one:X"), ModelEntry("Y", "one:Y")]


class Broken:
    @hookimpl
    def register_model(self) -> None:
        raise ValueError("no")


def test_a_hosts_manifest_is_plain_data_and_survives_the_wire(make_host: Any) -> None:
    made = make_host(Models(), Broken(), roles=["engine", "worker"]).manifest()
    sent = msgspec.convert(msgspec.json.decode(msgspec.json.encode(made)), Manifest)
    assert sent == made
    assert (sent.process, sent.roles) == ("engine", ["engine", "worker"])
    assert sent.registries["model"] == [
        NameEntry("X", "object:Models", "one:X"),
        NameEntry("Y", "object:Models", "one:Y"),
    ]
    states = {entry.identity: (entry.state, entry.stage) for entry in sent.plugins}
    assert states == {"object:Models": ("active", None), "object:Broken": ("out", "register")}


def test_late_claims_and_the_choice_of_platform_are_no_difference(
    make_host: Any, add_builtin: Any
) -> None:
    class Platform:
        def __init__(self, path: str) -> None:
            self.path = path

        @hookimpl
        def platform(self) -> str:
            return self.path

    add_builtin("cpu", Platform("core:Cpu"))
    objects = [Platform("npu:Npu"), Models()]
    parent = make_host(*objects, roles=["front"])
    child = make_host(*objects, roles=["engine", "worker"]).manifest()
    parent.platform()
    with parent.enter("object:Models"):
        parent.registry("model").register("Late", "one:Late")
    assert compare_manifests(parent.manifest(), child) == []


def test_what_failed_elsewhere_is_handed_on_with_the_process_in_which_it_failed(
    make_host: Any,
) -> None:
    class First:
        @hookimpl
        def shutdown(self) -> None: ...

    class Second(First): ...

    class Third(First):
        @hookimpl
        def process_started(self) -> None:
            raise ValueError("here")

    told = Denied("object:First", "worker", "import", "ValueError: there")
    host = make_host(First(), Second(), Third(), roles=("engine",), denied=(told,))
    later = Denied("object:Second", "worker", "run", "ValueError: there too")
    host.deny(later)
    host.calls.process_started(host.roles, None)
    mine = Denied("object:Third", "engine", "run", "hook process_started raised ValueError: here")
    assert sorted(host.failures(), key=lambda failure: failure.identity) == [told, later, mine]
