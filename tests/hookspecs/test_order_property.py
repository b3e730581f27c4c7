"""Any set of order constraints gives one order, however the plugins were found, or names a circle
that is there."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookserve.hookspecs import PluginConflictError
from hookserve.hookspecs.order import call_order
from hookserve.hookspecs.plugin import Facts, Plugin

NAMES = tuple("abcdefg")


class Wish(NamedTuple):
    """``first`` wants to be called before ``then``, or ``then`` after ``first``."""

    first: str
    then: str
    is_before: bool


ALL_WISHES = [
    Wish(first, then, is_before)
    for first in NAMES
    for then in (*NAMES, "absent")
    for is_before in (False, True)
]
WISHES = st.lists(st.sampled_from(ALL_WISHES), max_size=9)
ENTRIES = {"plain": "{}", "distribution": "dist/{}", "identity": "dist:hookserve:{}"}


def make_plugins(wishes: list[Wish], spelling: str) -> list[Plugin]:
    entry = ENTRIES[spelling].format
    return [
        Plugin(
            identity=f"dist:hookserve:{name}",
            name=name,
            group="hookserve",
            load=lambda: None,
            distribution="dist",
            facts=Facts(
                before=tuple(entry(w.then) for w in wishes if w.is_before and w.first == name),
                after=tuple(entry(w.first) for w in wishes if not w.is_before and w.then == name),
            ),
        )
        for name in NAMES
    ]


def edges(wishes: list[Wish]) -> set[tuple[str, str]]:
    """What must come before what; a wish about oneself, or about nobody, wants nothing."""
    return {(w.first, w.then) for w in wishes if w.first != w.then and w.then in NAMES}


def order_or_circle(plugins: list[Plugin]) -> tuple[list[str], list[str]]:
    try:
        return [plugin.name for plugin in call_order(plugins)], []
    except PluginConflictError as error:
        found = re.search(r"form a circle: (.*); leave", str(error))
        assert found is not None
        return [], [identity.removeprefix("dist:hookserve:") for identity in found[1].split(", ")]


def is_circle(names: list[str], wanted: set[tuple[str, str]]) -> bool:
    """Whether each of them waits for the next, and the last for the first."""
    pairs = zip(names, [*names[1:], names[0]], strict=True)
    return len(names) > 1 and all((awaited, waits) in wanted for waits, awaited in pairs)


def has_circle(wanted: set[tuple[str, str]]) -> bool:
    """By taking away, again and again, whatever waits for nothing."""
    left = set(NAMES)
    while free := {n for n in left if not any(e in left for e, later in wanted if later == n)}:
        left -= free
    return bool(left)


@settings(
    max_examples=1000,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(WISHES, st.sampled_from(sorted(ENTRIES)), st.integers(0, 1 << 30))
def test_the_order_depends_on_the_wishes_alone(
    wishes: list[Wish], spelling: str, seed: int
) -> None:
    found = make_plugins(wishes, spelling)
    order, circle = order_or_circle(found)
    dice = random.Random(seed)
    for _ in range(3):
        dice.shuffle(found)
        assert order_or_circle(found) == (order, circle)
    wanted = edges(wishes)
    if has_circle(wanted):
        assert is_circle(circle, wanted), (circle, wanted)
        return
    assert sorted(order) == list(NAMES)
    for first, then in wanted:
        assert order.index(first) < order.index(then)
    if not wanted:
        assert order == list(NAMES)
