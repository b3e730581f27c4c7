"""The one rule for what runs where an op is called: the list ``custom_ops``, the platform and an
override, and what an operator should be told of them. Nothing but names goes in and comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hookserve.hookspecs.op_names import class_of

CALLED: Mapping[str, tuple[str, ...]] = {
    "cpu": ("forward_cpu", "forward_native"),
    "cuda": ("forward_cuda", "forward_native"),
    "rocm": ("forward_hip", "forward_cuda", "forward_native"),
    "xpu": ("forward_xpu", "forward_native"),
    "tpu": ("forward_tpu", "forward_native"),
    "oot": ("forward_oot", "forward_native"),
}
"""Of each platform the method that is called, and those that it goes on to unless a class defines
it otherwise."""

METHODS: frozenset[str] = frozenset(name for chain in CALLED.values() for name in chain)


class OpNames(NamedTuple):
    registered: str
    class_name: str

    def __str__(self) -> str:
        return f"{self.registered} ({self.class_name})"


class Override(NamedTuple):
    owner: str
    methods: frozenset[str]
    """Those of ``METHODS`` that it defines otherwise than the class that it stands for."""
    is_dispatched: bool = True
    """Whether its ``forward`` is the one that goes by platform."""


class Decision(NamedTuple):
    """``overrides``: whether the override is built. ``method``: what is called. ``enabled``: what
    the class answers when it is asked. ``reason`` ends "... because REASON"."""

    overrides: bool
    method: str
    enabled: bool
    reason: str
    warning: str | None = None


def check_list(custom_ops: Sequence[str]) -> None:
    """
    Raises:
        ValueError: an item that is none, ``all`` beside ``none``, or one name with both signs.
    """
    for item in custom_ops:
        if item not in ("all", "none") and not (item[:1] in ("+", "-") and item[1:].strip()):
            raise ValueError(f"{item!r} in custom_ops; expected all, none, +NAME or -NAME")
    if "all" in custom_ops and "none" in custom_ops:
        raise ValueError("custom_ops has both all and none; expected one of them")
    for on in (item for item in custom_ops if item[0] == "+"):
        for off in (item for item in custom_ops if item[0] == "-"):
            if class_of(on[1:]) == class_of(off[1:]):
                raise ValueError(f"custom_ops has both {on} and {off}; expected one of them")


def named(custom_ops: Iterable[str]) -> list[str]:
    """The names that stand in the list with a sign, once each."""
    return list(dict.fromkeys(item[1:] for item in custom_ops if item[0] in "+-"))


def is_on_by_default(custom_ops: Sequence[str], *, compiles: bool) -> bool:
    """What holds for an op that nobody names and nobody overrides: what a compiler makes of plain
    functions is better than what it cannot look into."""
    if "all" in custom_ops or "none" in custom_ops:
        return "all" in custom_ops
    return not compiles


def decide(
    names: OpNames,
    custom_ops: Sequence[str],
    *,
    platform: str,
    compiles: bool = False,
    override: Override | None = None,
) -> Decision:
    """
    Args:
        custom_ops: as ``check_list`` has passed it. An op's two names count as one.
        platform: a key of ``CALLED``.
        compiles: whether the model is compiled.

    Raises:
        ValueError: the op is named with both signs.
    """
    signs = {sign for sign in "+-" for name in names if f"{sign}{name}" in custom_ops}
    if len(signs) > 1:
        raise ValueError(f"custom_ops switches {names} both on and off; expected one of them")
    if override is None:
        return _plain(names, custom_ops, signs, platform, compiles=compiles)
    if "-" in signs:
        return _native(f"custom_ops has -{_said(names, custom_ops)}")
    if "none" in custom_ops and not signs:
        warning = (
            f"custom_ops has none, so {override.owner}'s override of {names} is not used; add "
            f"+{names.registered}"
        )
        return _native("custom_ops has none", warning)
    return Decision(
        overrides=True,
        method=CALLED[platform][0],
        enabled=True,
        reason=f"{override.owner} overrides it",
        warning=_never_called(names, override, platform),
    )


def _plain(
    names: OpNames, custom_ops: Sequence[str], signs: set[str], platform: str, *, compiles: bool
) -> Decision:
    if "-" in signs:
        return _native(f"custom_ops has -{_said(names, custom_ops)}")
    if "+" in signs:
        reason = f"custom_ops has +{_said(names, custom_ops)}"
    elif is_on_by_default(custom_ops, compiles=compiles):
        reason = "custom_ops has all" if "all" in custom_ops else "nothing is compiled"
    else:
        return _native("custom_ops has none" if "none" in custom_ops else "the model is compiled")
    return Decision(overrides=False, method=CALLED[platform][0], enabled=True, reason=reason)


def _native(reason: str, warning: str | None = None) -> Decision:
    return Decision(
        overrides=False, method="forward_native", enabled=False, reason=reason, warning=warning
    )


def _said(names: OpNames, custom_ops: Sequence[str]) -> str:
    return next(name for name in names if {f"+{name}", f"-{name}"} & set(custom_ops))


def _never_called(names: OpNames, override: Override, platform: str) -> str | None:
    called = CALLED[platform]
    if not override.is_dispatched or not override.methods:
        return None
    if not override.methods.isdisjoint(called):
        return None
    return (
        f"{override.owner} overrides {', '.join(sorted(override.methods))} of {names}, which the "
        f"platform '{platform}' does not call: it calls {' and then '.join(called)}"
    )
