"""Every public point stands in the table of tiers, nothing else does, and the page shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hookserve.engine
import hookserve.hookspecs
import hookserve.server
from hookserve.hookspecs import Host, PluginSettings, specs
from hookserve.hookspecs import deprecated as deprecated_module
from hookserve.hookspecs.deprecated import Deprecated
from hookserve.hookspecs.manager import read_specs
from hookserve.hookspecs.stability import STABILITY, Kind
from hookserve.hookspecs.targets import import_target
from hookserve.server.settings import EXTRA_ENVIRONMENT, all_specs, resolve_settings
from hookserve.server.stability_reference import stability_reference


def routes() -> set[str]:
    """Methods and paths of what the built-in endpoints serve."""
    host = Host(["front"], PluginSettings(no_plugins=True), strict=False)
    made = [import_target(claim.target)() for claim in host.registry("endpoint").claims()]
    return {
        f"{method} {route.path.replace(':path', '')}"
        for endpoint in made
        for route in endpoint.routes()
        for method in set(route.methods) - {"HEAD"}
    }


def names() -> set[str]:
    modules = (hookserve.hookspecs, hookserve.engine, hookserve.server)
    return {f"{module.__name__}.{name}" for module in modules for name in module.__all__}


@pytest.mark.parametrize(
    ("kind", "find"),
    [
        ("hook", lambda: set(read_specs(specs))),
        ("name", names),
        ("flag", lambda: {spec.flag for spec in all_specs()}),
        ("environment", lambda: set(EXTRA_ENVIRONMENT)),
        ("route", routes),
    ],
)
def test_the_table_has_each_public_point(kind: Kind, find: Callable[[], set[str]]) -> None:
    existing = find()
    listed = {name for tier in STABILITY[kind].values() for name in tier}
    assert existing - listed == set(), "add it to hookspecs/stability.py with its tier"
    assert listed - existing == set(), "it does not exist (any more)"


def test_the_page_shows_the_table(source_root: Path) -> None:
    page = (source_root / "docs" / "stability.md").read_text(encoding="utf-8")
    assert page == stability_reference(), (
        "run: python -m hookserve.server.stability_reference > docs/stability.md"
    )
    for spec in all_specs():
        assert f"`{spec.flag}`, `{spec.env}`" in page


@pytest.mark.checklist(134, 135, 137)
def test_an_unstable_or_outgoing_flag_is_told_where_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = Deprecated(name="--uds", kind="flag", since="0.2", removal="9.0", instead="--host")
    monkeypatch.setattr(deprecated_module, "DEPRECATED", (old,))
    quiet = resolve_settings({"port": "1"}, {})
    assert (quiet.notes, quiet.warnings) == ((), ())
    told = resolve_settings({"additional_config": ["{}"]}, {"HOOKSERVE_UDS": "/x"})
    assert told.notes == (
        "--additional-config (from flag --additional-config) is unstable: it may change in any "
        "release",
    )
    assert told.warnings == (old.text(),)
