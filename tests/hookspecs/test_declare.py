"""Registrations that a plugin's code makes by itself: whose they are, how long they last."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Host, Named, PluginConflictError, PluginError, hookimpl
from hookserve.hookspecs.self_registration import declare

AT_IMPORT = """
from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.self_registration import declare


class Op:
    pass


declare("oot_op", "rms_norm", Op)


@hookimpl
def process_started(roles):
    {body}
"""
IDENTITY = "file:registers"


@pytest.fixture
def make(make_host: Any, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """``make(files={stem: body of its hook}, roles=..., ...)``"""
    before = set(sys.modules)

    def start(files: dict[str, str], **options: Any) -> Host:
        paths = []
        for stem, body in files.items():
            paths.append(tmp_path / f"{stem}.py")
            paths[-1].write_text(AT_IMPORT.format(body=body))
        host: Host = make_host(files=tuple(map(str, paths)), **{"roles": ["worker"], **options})
        host.calls.process_started(host.roles, None)
        return host

    yield start
    for name in {"registers", "another"} & set(sys.modules) - before:
        del sys.modules[name]


def owners(host: Host) -> dict[str, str]:
    return {claim.name: claim.owner for claim in host.registry("oot_op").claims()}


def test_it_belongs_to_the_plugin_whose_code_runs(make: Callable[..., Host]) -> None:
    host = make({"registers": "declare('oot_op', 'Later', Op)"})
    assert owners(host) == {"RMSNorm": IDENTITY, "Later": IDENTITY}
    (plugin,) = [each for each in host.describe() if each.identity == IDENTITY]
    assert [(each.name, each.target) for each in plugin.declarations] == [
        ("RMSNorm", "registers:Op"),
        ("Later", "registers:Op"),
    ]


def test_a_plugin_that_goes_out_leaves_none(make: Callable[..., Host]) -> None:
    host = make({"registers": "declare('oot_op', 'Later', Op); raise ValueError('no')"})
    assert owners(host) == {}


def test_a_process_without_the_table_has_no_use_for_it(make: Callable[..., Host]) -> None:
    host = make({"registers": "pass"}, roles=["front"])
    assert [each.state for each in host.describe() if each.identity == IDENTITY] == ["active"]


def test_the_next_host_of_the_process_has_what_a_module_did_when_it_was_imported(
    make: Callable[..., Host], make_host: Any, tmp_path: Path
) -> None:
    """And not what a function did, which may do otherwise the next time."""
    first = make({"registers": "declare('oot_op', 'Later', Op)"})
    assert "Later" in owners(first)
    first.close()
    second = make_host(files=(str(tmp_path / "registers.py"),), roles=["worker"])
    assert owners(second) == {"RMSNorm": IDENTITY}


def test_two_plugins_stop_the_start_unless_the_operator_decides(
    make: Callable[..., Host],
) -> None:
    files = {"registers": "pass", "another": "pass"}
    message = r"oot_op 'RMSNorm' is claimed by .*--prefer oot_op:RMSNorm="
    with pytest.raises(PluginConflictError, match=message):
        make(files)
    host = make(files, prefer=("oot_op:rms_norm=another",))
    assert owners(host) == {"RMSNorm": "file:another"}


def test_a_conflict_while_a_hook_runs_stops_the_start_too(make: Callable[..., Host]) -> None:
    later = "declare('oot_op', 'Later', Op)"
    with pytest.raises(PluginConflictError, match="oot_op 'Later' is claimed by"):
        make({"registers": later, "another": later}, prefer=("oot_op:rms_norm=another",))


def test_nobodys_registration_is_refused() -> None:
    with pytest.raises(PluginError, match="'X' was registered outside any plugin's code"):
        declare("oot_op", "X", Host)


def test_a_file_that_registers_while_it_is_imported_needs_no_hook(
    make_host: Any, tmp_path: Path
) -> None:
    """Also where the process has no such table, under a second host, and with an object."""
    path = tmp_path / "only_calls.py"
    path.write_text(
        "from hookserve.hookspecs import declare\n\n\nclass Calls:\n    pass\n\n\n"
        "declare('tool_parser', 'calls', Calls)\ndeclare('tool_parser', 'object', Calls())\n"
    )
    silent = tmp_path / "no_calls.py"
    silent.write_text("")
    try:
        for roles in (["front"], ["worker"], ["front"]):
            host = make_host(files=(str(path), str(silent)), roles=roles)
            states = {report.name: report.state for report in host.describe()}
            assert (states["only_calls"], states["no_calls"]) == ("active", "out")
            if "front" in roles:
                names = {claim.name for claim in host.registry("tool_parser").claims()}
                assert {"calls", "object"} <= names
            host.close()
    finally:
        for name in ("only_calls", "no_calls"):
            sys.modules.pop(name, None)


def test_a_module_may_register_more_while_its_target_is_looked_up(
    make_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lazy_target.py").write_text(
        "from hookserve.hookspecs import declare\n\n\nclass Target:\n    pass\n\n\n"
        "def more(name):\n    declare('tool_parser', name, Target)\n\n\nmore('beside')\n"
    )

    class Lazy:
        @hookimpl
        def tool_parser(self) -> Named:
            return Named("lazy", "lazy_target:Target")

    host = make_host(Lazy(), roles=["front"])
    registry = host.registry("tool_parser")
    try:
        target = registry.resolve("lazy")
        claim = registry.get("beside")
        assert claim is not None and claim.target is target
        with host.enter(claim.plugin), pytest.raises(PluginError, match="too late"):
            sys.modules["lazy_target"].more("later")
    finally:
        sys.modules.pop("lazy_target", None)
