"""Registries: owners, who wins, when it is too late, what a failure leaves."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookserve.hookspecs import (
    Claim,
    PluginConflictError,
    PluginError,
    Registry,
    UnknownNameError,
    running,
)
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.plugin import Plugin


def third(name: str) -> Plugin:
    return Plugin(
        identity=f"{name}-dist:hookserve:{name}",
        name=name,
        group="hookserve",
        load=lambda: None,
        file=f"/site/{name}.py",
    )


BUILTIN = Plugin(
    identity="hookserve:builtin:models",
    name="models",
    group="builtin",
    load=lambda: None,
    file="/builtin/models.py",
)
A, B, C = third("a"), third("b"), third("c")


def filled(*claims: tuple[str, Any, Plugin], **options: Any) -> Registry:
    registry = Registry("model", **options)
    for name, target, plugin in claims:
        registry.add(Claim("model", name, target, plugin))
    registry.decide()
    return registry


def state_of(registry: Registry, plugin: Plugin) -> str:
    (claim,) = [claim for claim in registry.all_claims() if claim.plugin is plugin]
    return claim.state


def test_a_third_party_beats_a_built_in_and_one_warning_names_both() -> None:
    warnings: list[str] = []
    registry = filled(
        ("X", "a:X", A), ("X", "m:X", BUILTIN), say=lambda line, late: warnings.append(line)
    )
    claim = registry.get("X")
    assert claim is not None
    assert (claim.owner, claim.overrides) == (A.identity, BUILTIN.identity)
    assert state_of(registry, BUILTIN) == f"overridden by {A.identity}"
    assert warnings == [f"model 'X': {A.identity} overrides built-in {BUILTIN.identity}"]
    registry.decide()
    assert registry.claims() == [claim]


def test_two_third_parties_are_a_conflict_with_both_files_and_the_ways_out() -> None:
    with pytest.raises(PluginConflictError) as raised:
        filled(("X", "a:X", A), ("X", "b:X", B))
    for word in (
        A.identity,
        B.identity,
        "/site/a.py",
        "/site/b.py",
        f"--prefer model:X={A.identity}",
        f"--prefer model:X={B.identity}",
        "--disable-plugins",
    ):
        assert word in str(raised.value)
    assert raised.value.exit_code == 78


@pytest.mark.parametrize("preferred", [A, B, BUILTIN])
def test_a_preference_decides(preferred: Plugin) -> None:
    claims = [("X", "a:X", A), ("X", "b:X", B), ("X", "m:X", BUILTIN)]
    registry = filled(*claims, prefer={"X": preferred})
    claim = registry.get("X")
    assert claim is not None and claim.plugin is preferred
    losers = {A, B, BUILTIN} - {preferred}
    for loser in losers:
        verb = "overridden by" if loser is BUILTIN else "yielded to"
        assert state_of(registry, loser) == f"{verb} {preferred.identity}"


def test_the_identical_thing_again_is_nothing_new() -> None:
    registry = filled(("X", "a.m:X", A), ("X", "a.m.X", A), ("X", "a.m:X", B))
    assert [claim.owner for claim in registry.claims()] == [A.identity]
    assert state_of(registry, B) == f"same as {A.identity}"


def test_one_plugin_cannot_mean_two_things_by_one_name() -> None:
    with pytest.raises(PluginError, match=r"a-dist:hookserve:a .* 'X' twice, as a:X and as a:Y"):
        filled(("X", "a:X", A), ("X", "a:Y", A))


def test_kinds_of_which_all_are_used_have_no_conflicts() -> None:
    registry = filled(("X", dict, A), ("X", list, B), ("X", dict, C), chosen_by_name=False)
    claims = [(claim.target, claim.plugin) for claim in registry.claims()]
    assert claims == [(dict, A), (list, B)], "the same thing again is one"
    assert [registry.resolve(name) for name in registry.names()] == [dict, list]


def test_for_inspection_a_conflict_is_recorded_and_not_raised() -> None:
    registry = filled(("X", "a:X", A), ("X", "b:X", B), strict=False)
    assert state_of(registry, A) == f"in conflict with {B.identity}"
    assert state_of(registry, B) == f"in conflict with {A.identity}"


def test_withdrawing_makes_the_built_in_active_again_and_leaves_others_alone() -> None:
    registry = filled(("X", "a:X", A), ("Y", "b:Y", B), ("X", "m:X", BUILTIN))
    other = registry.get("Y")
    registry.withdraw(A)
    claim = registry.get("X")
    assert claim is not None
    assert (claim.owner, claim.state, claim.overrides) == (BUILTIN.identity, "active", None)
    assert registry.get("Y") is other
    assert A not in [claim.plugin for claim in registry.all_claims()]


# -- late registrations -------------------------------------------------------------------------


def test_a_late_registration_belongs_to_whoever_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = filled(("X", "a:X", A))
    with enter(B):
        registry.register("Late", "b:Late")
    claim = registry.get("Late")
    assert claim is not None
    assert (claim.owner, claim.late) == (B.identity, True)
    assert f"plugin {B.identity} registered model 'Late' late" in caplog.text


def test_the_first_lookup_freezes_and_names_its_place() -> None:
    registry = filled(("X", "a:X", A))
    registry.claims(), registry.nearest("X"), registry.all_claims()
    registry.register("Y", "a:Y", A)
    registry.get("X")
    with enter(B), pytest.raises(PluginError) as raised:
        registry.register("Late", "b:Late")
    assert raised.value.identity == B.identity
    place = rf"too late: the table was read at {re.escape(__file__)}:\d+"
    assert re.search(place, str(raised.value))
    registry.register("Y", "a:Y", A)  # the identical thing is never too late


@pytest.mark.parametrize("look_up", ["names", "resolve"])
def test_every_lookup_freezes(look_up: str) -> None:
    registry = filled(("X", dict, A))
    getattr(registry, look_up)(*["X"][: look_up == "resolve"])
    assert registry.frozen_at is not None and registry.frozen_at.startswith(__file__)


def test_a_registration_outside_any_plugin_is_refused() -> None:
    with pytest.raises(PluginError, match="outside any plugin's code"):
        filled().register("X", "a:X")


def test_a_late_conflict_leaves_the_table_as_it_was() -> None:
    registry = filled(("X", "a:X", A))
    with enter(B), pytest.raises(PluginConflictError):
        registry.register("X", "b:X")
    claim = registry.get("X")
    assert claim is not None and (claim.owner, claim.state) == (A.identity, "active")


# -- resolving ----------------------------------------------------------------------------------


def test_a_target_is_imported_when_it_is_resolved_once_in_its_owners_name(site: Path) -> None:
    (site / "reg_target.py").write_text(
        "from hookserve.hookspecs import running\nclass Model:\n    owner = running().identity\n"
    )
    registry = filled(("X", "reg_target:Model", A))
    (claim,) = registry.claims()
    assert "reg_target" not in sys.modules
    assert not claim.used
    found = registry.resolve("X")
    assert found.owner == A.identity
    assert claim.used
    assert registry.resolve("X") is found
    assert running() is None


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("raise ValueError('broken')", "reg_bad:Model", "ValueError: broken"),
        ("import sys; sys.exit(5)", "reg_bad:Model", "SystemExit: 5"),
        ("", "reg_bad:Model", "has no attribute 'Model'"),
        ("", "reg_absent.deep.Model", "ModuleNotFoundError"),
    ],
)
def test_a_target_that_fails_names_owner_target_and_exception(
    source: str, target: str, words: str, site: Path
) -> None:
    (site / "reg_bad.py").write_text(source)
    registry = filled(("X", target, A))
    with pytest.raises(PluginError) as raised:
        registry.resolve("X")
    assert (raised.value.identity, raised.value.stage) == (A.identity, "import")
    assert target in str(raised.value)
    assert words in str(raised.value)
    assert raised.value.__cause__ is not None


def test_a_class_path_is_accepted_in_place_of_a_name() -> None:
    registry = filled(("X", "a:X", A))
    assert registry.resolve("types:ModuleType") is ModuleType
    with pytest.raises(PluginError, match=r"no_such_module_here:X"):
        registry.resolve("no_such_module_here:X")


def test_an_unknown_name_gives_the_nearest() -> None:
    registry = filled(("LlamaForCausalLM", "a:X", A), ("Mistral", "a:Y", A))
    with pytest.raises(UnknownNameError, match=r"'LamaForCausalLM' .* did you mean Llama"):
        registry.resolve("LamaForCausalLM")
    assert registry.nearest("llamaforcausallm") == ["LlamaForCausalLM"]


def test_withdrawing_before_all_is_decided_decides_about_no_other_name() -> None:
    registry = Registry("model")
    for plugin in (A, B):
        registry.add(Claim("model", "X", f"{plugin.name}:X", plugin))
    registry.add(Claim("model", "Y", "c:Y", C))
    registry.withdraw(C)
    registry.withdraw(B)
    registry.decide()
    assert [(claim.name, claim.plugin) for claim in registry.claims()] == [("X", A)]
