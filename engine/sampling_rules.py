"""What each field of ``SamplingParams`` may hold, and the error that says so.

The rules look at one value each; what two fields say together is ``sampling_params``'.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .errors import cut

_MAX_SHOWN = 100
"""Characters of a value that a message repeats."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 32
"""Of what plugins are given."""


class RequestOutputKind(enum.Enum):
    """What each output of a request that is still running holds."""

    CUMULATIVE = 0
    """Everything so far."""
    DELTA = 1
    """What is new since the last one."""
    FINAL_ONLY = 2
    """There is one output, at the end."""


class SamplingParamsError(ValueError):
    """A value that cannot be; the message names the field, the value and what is expected.

    Attributes:
        param: the field's name.
    """

    def __init__(self, param: str, value: Any, expected: str) -> None:
        shown = cut(repr(value) if isinstance(value, str) else value, _MAX_SHOWN)
        super().__init__(f"{param}: {shown} is not {expected}")
        self.param = param


class Rule(NamedTuple):
    name: str
    accepts: Callable[[Any], bool]
    expected: str
    """Ends the sentence "VALUE is not ..."."""


def as_list(name: str, value: Any) -> list[Any]:
    """A field's value as a list of its own: of a list or another collection, of one text, of
    nothing.

    Raises:
        SamplingParamsError: the value is none of these.
    """
    if value is None:
        return []
    if name in ("stop", "bad_words") and isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple | set | frozenset | range):
        raise SamplingParamsError(name, value, "a list")
    return list(value)


def as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    """The same of a field that is filled in front, and of no other use to callers."""
    items = as_list(name, value)
    if name == "bad_words_token_ids":
        return tuple(tuple(each) if isinstance(each, list | tuple) else each for each in items)
    return tuple(items)


def _whole(name: str, least: int, most: int | None = None, *, optional: bool = False) -> Rule:
    def accepts(value: Any) -> bool:
        if value is None:
            return optional
        return type(value) is int and value >= least and (most is None or value <= most)

    return Rule(name, accepts, f"a whole number {_range(least, most)}")


def _number(name: str, least: float, most: float | None = None) -> Rule:
    def accepts(value: Any) -> bool:
        return _is_number(value) and value >= least and (most is None or value <= most)

    return Rule(name, accepts, f"a number {_range(least, most)}")


def _range(least: float, most: float | None) -> str:
    return f"from {least} on" if most is None else f"from {least} to {most}"


def _is_number(value: Any) -> bool:
    # A whole number may be too large to be made a float; comparing the two is exact.
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _are_ids(value: Any) -> bool:
    return set(map(type, value)) <= {int} and (not value or min(value) >= 0)


def _are_id_lists(value: Any) -> bool:
    return all(type(item) is tuple and item and _are_ids(item) for item in value)


def _is_bias(value: Any) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and _are_ids(value)
        and all(_is_number(bias) and abs(bias) <= 100 for bias in value.values())
    )


def _is_json(value: Any, depth: int = 0) -> bool:
    """Whether every process can be sent it, and reads the same."""
    kind = type(value)
    if value is None or kind in (bool, float):
        return True
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is str:
        return _SURROGATE.search(value) is None
    if depth == _MAX_DEPTH:
        return False
    if kind in (list, tuple):
        return all(_is_json(item, depth + 1) for item in value)
    if kind is not dict:
        return False
    return all(
        type(key) is str and _is_json(key) and _is_json(item, depth + 1)
        for key, item in value.items()
    )


def _ids(name: str) -> Rule:
    return Rule(name, _are_ids, "a list of token ids")


def _texts(name: str) -> Rule:
    def accepts(value: Any) -> bool:
        return all(isinstance(item, str) and item for item in value)

    return Rule(name, accepts, "a list of texts that are not empty")


def _switch(name: str) -> Rule:
    return Rule(name, lambda value: type(value) is bool, "true or false")


RULES: tuple[Rule, ...] = (
    _whole("n", 1),
    _whole("best_of", 1, optional=True),
    _number("temperature", 0),
    Rule("top_p", lambda value: _is_number(value) and 0 < value <= 1, "a number above 0, up to 1"),
    _whole("top_k", -1, 2**31 - 1),
    _number("min_p", 0, 1),
    Rule("repetition_penalty", lambda value: _is_number(value) and value > 0, "a number above 0"),
    _number("presence_penalty", -2, 2),
    _number("frequency_penalty", -2, 2),
    Rule("logit_bias", _is_bias, "numbers from -100 to 100 by token id"),
    Rule(
        "allowed_token_ids",
        lambda value: value is None or bool(value and _are_ids(value)),
        "a list of token ids, at least one",
    ),
    _texts("bad_words"),
    Rule("bad_words_token_ids", _are_id_lists, "a list of lists of token ids, none empty"),
    _whole("seed", -(2**63), 2**63 - 1, optional=True),
    _whole("max_tokens", 1, optional=True),
    _whole("min_tokens", 0),
    _whole("logprobs", -1, optional=True),
    _whole("prompt_logprobs", -1, optional=True),
    _texts("stop"),
    _ids("stop_token_ids"),
    _switch("ignore_eos"),
    _ids("eos_token_ids"),
    _switch("skip_special_tokens"),
    _switch("spaces_between_special_tokens"),
    _switch("include_stop_str_in_output"),
    Rule(
        "extra_args",
        lambda value: value is None or (type(value) is dict and _is_json(value)),
        f"an object of JSON values, at most {_MAX_DEPTH} deep, with whole numbers of 64 bits",
    ),
    Rule(
        "output_kind",
        lambda value: isinstance(value, RequestOutputKind),
        "a RequestOutputKind",
    ),
)
"""One for each field, in the order in which they are looked at."""

RULE_OF: Mapping[str, Rule] = {rule.name: rule for rule in RULES}
