"""What runs where an op is called: every override, platform, list and name against one another."""

from __future__ import annotations

from itertools import product

import pytest

from hookserve.ops.op_rule import METHODS, OpNames, Override, check_list, decide

NAMES = OpNames("rms_norm", "RMSNorm")
CALLED = {
    "cpu": "forward_cpu",
    "cuda": "forward_cuda",
    "rocm": "forward_hip",
    "xpu": "forward_xpu",
    "tpu": "forward_tpu",
    "oot": "forward_oot",
}
REACHES = {
    "cpu": {"forward_cpu", "forward_native"},
    "cuda": {"forward_cuda", "forward_native"},
    "rocm": {"forward_hip", "forward_cuda", "forward_native"},
    "xpu": {"forward_xpu", "forward_native"},
    "tpu": {"forward_tpu", "forward_native"},
    "oot": {"forward_oot", "forward_native"},
}
LISTS: dict[tuple[str, ...], tuple[bool, bool | None]] = {
    (): (True, None),
    ("all",): (True, True),
    ("none",): (False, False),
    ("+NAME",): (True, True),
    ("-NAME",): (False, False),
    ("all", "-NAME"): (False, False),
    ("none", "+NAME"): (True, True),
    ("all", "+NAME"): (True, True),
    ("none", "-NAME"): (False, False),
    ("+other", "-another"): (True, None),
    ("none", "+other"): (False, False),
}
"""To whether an override runs, and whether an op that nobody overrides is on; ``None``: unless the
model is compiled."""
METHOD_SETS: list[frozenset[str] | None] = [
    None,
    frozenset(),
    *(frozenset({name}) for name in sorted(METHODS)),
    frozenset({"forward_cuda", "forward_cpu"}),
]
"""What an override changes; ``None``: nobody overrides the op."""


@pytest.mark.checklist(67, 70, 71, 72, 73, 79)
@pytest.mark.parametrize("platform", CALLED)
@pytest.mark.parametrize("written", NAMES)
def test_what_runs(platform: str, written: str) -> None:
    table = product(LISTS.items(), METHOD_SETS, (False, True))
    for (items, (runs, is_on)), methods, compiles in table:
        given = [item.replace("NAME", written) for item in items]
        override = None if methods is None else Override("dist/me", methods)
        got = decide(NAMES, given, platform=platform, compiles=compiles, override=override)
        at = (given, methods, compiles)
        expected = runs if override else not compiles if is_on is None else is_on
        assert got.enabled is expected, at
        assert got.overrides is (override is not None and expected), at
        assert got.method == (CALLED[platform] if expected else "forward_native"), at
        passed_over = override is not None and "none" in items and len(items) == 1
        passed_over |= override is not None and items == ("none", "+other")
        unreached = (
            override is not None and expected and methods and not (methods & REACHES[platform])
        )
        assert (got.warning is not None) is bool(passed_over or unreached), at
        if got.warning is not None:
            assert "dist/me" in got.warning
            assert ("+rms_norm" in got.warning) is passed_over
            assert unreached is False or not unreached or all(m in got.warning for m in methods)


def test_a_class_that_replaces_forward_itself_is_not_called_by_platform() -> None:
    override = Override("dist/me", frozenset({"forward_cuda"}), is_dispatched=False)
    assert decide(NAMES, [], platform="cpu", override=override).warning is None


@pytest.mark.checklist(68, 69)
@pytest.mark.parametrize("override", [None, Override("dist/me", frozenset())])
@pytest.mark.parametrize("mix", [("+", "-"), ("-", "+")])
def test_both_signs_are_an_error_in_any_mix_of_the_names(
    override: Override | None, mix: tuple[str, str]
) -> None:
    for first, second in product(NAMES, NAMES):
        items = [mix[0] + first, mix[1] + second]
        with pytest.raises(ValueError, match=r"both"):
            check_list(items)
        with pytest.raises(ValueError, match=r"rms_norm \(RMSNorm\) both on and off"):
            decide(NAMES, items, platform="cpu", override=override)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["all", "none"], "both all and none"),
        (["rms_norm"], r"'rms_norm' in custom_ops; expected all, none, \+NAME or -NAME"),
        (["+"], r"'\+' in custom_ops"),
        ([""], "'' in custom_ops"),
        (["all,-rms_norm"], "'all,-rms_norm' in custom_ops"),
        (["+mine", "-mine"], r"both \+mine and -mine"),
    ],
)
def test_a_list_that_means_nothing_is_an_error(items: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_list(items)
