"""The call order: by identity, moved by ``before`` and ``after``, built-ins last."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import ApiRequest, PluginConflictError, hookimpl
from hookserve.hookspecs.order import call_order
from hookserve.hookspecs.plugin import Facts, Plugin
from plugin_folder import install_plugin


def plugin(name: str, *, group: str = "hookserve", **facts: Any) -> Plugin:
    return Plugin(
        identity=f"dist:{group}:{name}",
        name=name,
        group=group,
        load=lambda: None,
        distribution="dist",
        facts=Facts(**facts),
    )


def names(plugins: list[Plugin]) -> list[str]:
    return [ordered.name for ordered in call_order(plugins)]


def test_third_parties_by_identity_then_built_ins_as_listed() -> None:
    given = [plugin("z", group="builtin"), plugin("b"), plugin("y", group="builtin"), plugin("a")]
    assert names(given) == ["a", "b", "z", "y"]


def test_before_and_after_move_as_little_as_they_must() -> None:
    assert names([plugin("a", after=("c",)), plugin("b"), plugin("c")]) == ["b", "c", "a"]
    assert names([plugin("a"), plugin("b"), plugin("c", before=("dist/a",))]) == ["b", "c", "a"]


def test_a_constraint_on_what_is_not_installed_constrains_nothing() -> None:
    assert names([plugin("b", after=("absent",)), plugin("a")]) == ["a", "b"]


def test_a_circle_names_its_plugins() -> None:
    circle = [plugin("a", after=("b",)), plugin("b", after=("a",)), plugin("c")]
    with pytest.raises(PluginConflictError, match=r"circle: dist:hookserve:a, dist:hookserve:b;"):
        call_order(circle)


@pytest.mark.parametrize("constraint", [{"before": ("core",)}, {"after": ("core",)}])
def test_a_constraint_across_the_bands_is_an_error(constraint: dict[str, Any]) -> None:
    with pytest.raises(PluginConflictError, match=r"dist:hookserve:a .* dist:builtin:core"):
        call_order([plugin("a", **constraint), plugin("core", group="builtin")])


def test_hooks_are_called_in_that_order_and_tryfirst_stays_in_its_band(
    make_host: Any, add_builtin: Any
) -> None:
    called: list[str] = []

    def observer(name: str, **options: bool) -> object:
        def shutdown(self: Any, roles: Any) -> None:
            called.append(name)

        return type(name, (), {"shutdown": hookimpl(**options)(shutdown)})()

    add_builtin("core", observer("core", tryfirst=True))
    objects = [observer("C", tryfirst=True), observer("B"), observer("A", trylast=True)]
    host = make_host(*objects)
    host.close()
    assert called == ["C", "B", "A", "core"]
    assert [name for name, _ in reversed(host.pm.list_name_plugin())] == [
        "object:A",
        "object:B",
        "object:C",
        "hookserve:builtin:core",
    ]


APPENDS = """
from hookserve.hookspecs import hookimpl

@hookimpl
async def before_request(request):
    request.body["prompt"] += "{letter}"
"""
SHUFFLES = 20


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        ({}, "x A B C"),
        ({"a": "after = ['order_c']"}, "x B C A"),
        ({"b": "before = ['a-dist/order_a']"}, "x B A C"),
        ({"b": "before = ['order_a']", "a": "after = ['order_c']"}, "x B C A"),
    ],
)
def test_what_plugins_make_of_a_prompt_depends_on_no_order_of_installation(
    wishes: dict[str, str], text: str, make_host: Any, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a distribution in a folder of its own, and the folders are searched in any order."""
    folders = [site / letter for letter in "abc"]
    for folder in folders:
        source = APPENDS.format(letter=f" {folder.name.upper()}")
        name, toml = f"order_{folder.name}", wishes.get(folder.name)
        install_plugin(folder, f"{folder.name}-dist", {name: source}, toml=toml)
    path, dice = list(sys.path), random.Random(5)
    request = ApiRequest("r", "/v1/completions", "m", {"prompt": "x"}, {})
    orders = set()
    for _ in range(SHUFFLES):
        dice.shuffle(folders)
        orders.add(tuple(folders))
        monkeypatch.setattr(sys, "path", [*map(str, folders), *path])
        calls = make_host().calls
        assert asyncio.run(calls.before_request(request, None)).body == {"prompt": text}
    assert len(orders) > 3


def test_a_circle_of_installed_plugins_stops_the_start_with_their_names(
    site: Path, make_host: Any
) -> None:
    for letter, other in ("ab", "ba"):
        source, toml = APPENDS.format(letter=letter), f"after = ['order_{other}']"
        install_plugin(site, f"{letter}-dist", {f"order_{letter}": source}, toml=toml)
    circle = r"circle: a-dist:hookserve:order_a, b-dist:hookserve:order_b;"
    with pytest.raises(PluginConflictError, match=circle):
        make_host()
