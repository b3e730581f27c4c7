"""``OpFunction``: an op that is no class of its own, as one model computes it.

Layers and the engine take it once, when they are built, and ask its ``provided`` first. Which
provider that is ``dispatch`` chooses; what each op is, ``op_references`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .context import get_ops
from .op_table import OpRow


@dataclass(slots=True)
class OpFunction:
    row: OpRow
    """Of the table; whoever calls the op counts it there."""
    provided: Callable[..., Any] | None
    """May answer ``NotImplemented``; ``None``: the caller's own function is what computes."""


def take_op(op: str) -> OpFunction | None:
    """The op of the model that is being built, for one more layer; ``None`` outside of one, or
    where it is built without a choice of ops."""
    ops = get_ops()
    if ops is None:
        return None
    found = ops.function(op)
    found.row.built += 1
    return found
