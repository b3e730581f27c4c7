"""The call order: by identity, moved by ``before`` and ``after``, built-ins last."""

from __future__ import annotations

from typing import Any

import pytest

from hookserve.hookspecs import PluginConflictError, hookimpl
from hookserve.hookspecs.order import call_order
from hookserve.hookspecs.plugin import Facts, Plugin


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
