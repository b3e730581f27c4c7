"""Arguments of an engine that the ecosystem (vLLM) has and this one has not: which are passed over
with a word, which are refused, and which can at least be read. Why stands in ``vllm_flags``.
"""

from __future__ import annotations

import difflib
import functools
import logging
from dataclasses import fields
from typing import Any, TypeVar

from .errors import ConfigError, NotServedError
from .vllm_flags import Flag, find_flag

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=type[Any])


def taking_others(kind: C) -> C:
    """Decorates a dataclass whose constructor is given arguments of the ecosystem's, too.

    The constructor raises:
        TypeError: an argument that is none, with the nearest one that is.
        ConfigError: one of the ecosystem's that is refused, with the reason.
    """
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        known = [each.name for each in fields(self)]
        for name in [name for name in given if name not in known]:
            if not without_effect(name, given.pop(name)):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"unexpected keyword argument {name!r}{hint}")
        make(self, *args, **given)

    kind.__init__ = __init__
    return kind


def without_effect(name: str, value: Any) -> bool:
    """Whether it is one of the ecosystem's that may be given here and changes nothing.

    Raises:
        ConfigError: it would have to change something.
    """
    flag = _flag_of(name)
    if flag is None or flag.verdict == "works":
        return False
    if flag.verdict == "no effect":
        logger.info("%s has no effect, because %s", name, flag.reason)
    elif not _is_neutral(flag, value):
        raise ConfigError(_refusal(name, value, flag))
    return True


def expect_none(method: str, **given: Any) -> None:
    """
    Raises:
        NotServedError: an argument of the ecosystem's for what no engine here has.
    """
    for name, value in given.items():
        if value is not None:
            raise NotServedError(
                f"{method}: {name} has no meaning for this engine; expected None", param=name
            )


class FixedArgumentError(ConfigError):
    """Something was to be set that stands fast."""


class FixedArgument:
    """An attribute that code of the ecosystem reads, and that nobody can set to anything else."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return self._value

    def __set__(self, instance: Any, value: Any) -> None:
        """
        Raises:
            FixedArgumentError: it is another value.
        """
        if value != self._value:
            flag = _flag_of(self._name)
            assert flag is not None, "each is a flag of the ecosystem's"
            raise FixedArgumentError(_refusal(self._name, value, flag))


class FixedArguments:
    """What the arguments of an engine have beside their fields."""

    config_format = FixedArgument("auto")
    data_parallel_size = FixedArgument(1)
    enable_lora = FixedArgument(False)
    kv_cache_dtype = FixedArgument("auto")
    kv_transfer_config = FixedArgument(None)
    pipeline_parallel_size = FixedArgument(1)
    speculative_config = FixedArgument(None)
    tokenizer_mode = FixedArgument("auto")
    trust_remote_code = FixedArgument(False)


def _flag_of(name: str) -> Flag | None:
    return find_flag("--" + name.replace("_", "-"))


def _is_neutral(flag: Flag, value: Any) -> bool:
    return value is None or value is False or value == {} or str(value) in flag.neutral


def _refusal(name: str, value: Any, flag: Flag) -> str:
    return f"{name}={value!r:.120} is refused, because {flag.reason}"
