"""The table of ops: who computes each, in which process, and whether it has run.

A server that runs tells what its models compute with; of plugins that were only loaded it is known
what there is to choose from. Which is chosen, and why, ``hookserve.ops.dispatch`` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from hookserve.hookspecs.op_names import FUNCTION_OPS, OP_CLASSES, class_of, registered_of
from hookserve.hookspecs.report import OpReport, PluginReport, ProcessReport

from .plugin_table import in_columns

logger = logging.getLogger(__name__)

HEAD = ("op", "implementation", "owner", "process", "has run", "because")
_ATTENTION = tuple(op for op in FUNCTION_OPS if op == "kv_write" or "attention" in op)
"""What an attention backend computes."""


class OpLine(msgspec.Struct, frozen=True, kw_only=True):
    """One op in one process."""

    op: str
    implementation: str
    owner: str
    process: str
    built: int = 0
    """Layers; 0 also where no model was built."""
    calls: int = 0
    reason: str = ""


def running_ops(reports: Iterable[ProcessReport]) -> list[OpLine]:
    """What the models of processes compute with."""
    return [_running(op, report.process) for report in reports for op in report.ops]


def _running(op: OpReport, process: str) -> OpLine:
    return OpLine(
        op=op.op,
        implementation=op.implementation,
        owner=op.owner,
        process=process,
        built=op.built,
        calls=op.calls,
        reason=op.reason,
    )


def declared_ops(reports: Sequence[PluginReport]) -> list[OpLine]:
    """What a worker's model can choose from: of each op the overrides, the providers, the attention
    backends, and at last torch."""
    found: dict[str, list[OpLine]] = {op: [] for op in (*OP_CLASSES, *FUNCTION_OPS)}
    for report in reports:
        for each in report.declarations:
            if each.state != "active":
                continue
            for op, implementation in _declared(each.kind, each.name, each.target):
                found.setdefault(op, []).append(
                    OpLine(
                        op=op,
                        implementation=implementation,
                        owner=report.identity,
                        process="worker",
                        reason=f"declared as {each.kind}",
                    )
                )
    for op, lines in found.items():
        if op not in _ATTENTION:
            owner = "hookserve"
            lines.append(
                OpLine(
                    op=op, implementation="torch", owner=owner, process="worker", reason="its own"
                )
            )
    return [line for lines in found.values() for line in lines]


def _declared(kind: str, name: str, target: str) -> Iterable[tuple[str, str]]:
    """The ops that a declaration is for, and what is shown as their implementation."""
    if kind == "oot_op":
        yield registered_of(class_of(name)), target
    elif kind == "op_provider":
        op, _, provider = name.partition(".")
        yield op, provider
    elif kind == "attention_backend":
        for op in _ATTENTION:
            yield op, name


def format_ops(lines: Sequence[OpLine]) -> str:
    return in_columns([HEAD, *(_cells(line) for line in lines)])


def _cells(line: OpLine) -> tuple[str, ...]:
    run = f"{line.calls} times" if line.calls else "no" if line.built else "not built"
    return line.op, line.implementation, line.owner, line.process, run, line.reason


def log_ops(reports: Iterable[ProcessReport], third_parties: Iterable[str]) -> None:
    """Tell who computes what once a server is ready: what is a plugin's at INFO, the rest at DEBUG.

    Args:
        third_parties: identities of the plugins that are not built in.
    """
    theirs = set(third_parties)
    for line in running_ops(reports):
        logger.log(
            logging.INFO if line.owner in theirs else logging.DEBUG,
            "op %s in %s: %s of %s, built %d, called %d times: %s",
            line.op,
            line.process,
            line.implementation,
            line.owner,
            line.built,
            line.calls,
            line.reason,
        )
