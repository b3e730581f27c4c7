"""What the operator says of ops: which run as platforms and plugins have them, and who provides
them. What becomes of it is ``op_choices``'.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.op_names import registered_of
from hookserve.ops.op_rule import check_list

from .errors import ConfigError
from .section_arguments import SectionArguments

if TYPE_CHECKING:
    from .engine_args import EngineArgs

logger = logging.getLogger(__name__)


def read_custom_ops(args: EngineArgs) -> list[str]:
    """``custom_ops`` of ``--compilation-config``; the rest of it is told to have no effect.

    Raises:
        ConfigError: it is no list, or one that says two things of one op.
    """
    given = args.compilation_config
    if isinstance(given, SectionArguments):
        given = given.said()
    idle = [name for name in given if name != "custom_ops"]
    if idle:
        logger.warning(
            "--compilation-config: %s %s no effect: a model is run as it is written, not compiled",
            ", ".join(idle),
            "have" if len(idle) > 1 else "has",
        )
    items = given.get("custom_ops") or []
    if not _is_texts(items):
        raise ConfigError(
            f"{_where(args, 'compilation_config')}: custom_ops is {items!r}; expected a list of "
            "all, none, +NAME and -NAME"
        )
    try:
        check_list(items)
    except ValueError as error:
        raise ConfigError(f"{_where(args, 'compilation_config')}: {error}") from error
    return list(items)


def read_op_priority(args: EngineArgs) -> dict[str, list[str]]:
    """Registered name of each op that was named, to its providers' names.

    Raises:
        ConfigError: a value is no list of names.
    """
    given: Mapping[str, Any] = args.ir_op_priority
    for op, names in given.items():
        if not _is_texts(names) or not names:
            raise ConfigError(
                f"{_where(args, 'ir_op_priority')}: {op} is {names!r}; expected a list of "
                'providers, such as ["torch"]'
            )
    return {registered_of(op): list(names) for op, names in given.items()}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _where(args: EngineArgs, name: str) -> str:
    return f"--{name.replace('_', '-')} (from {args.sources.get(name, name)})"
