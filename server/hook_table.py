"""Every hook with its implementations in call order, for ``server plugins hooks``.

Made of the specifications and of the reports of one process, or several, that loaded the plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hookserve.hookspecs import specs
from hookserve.hookspecs.manager import read_specs
from hookserve.hookspecs.markers import HookInfo
from hookserve.hookspecs.report import PluginReport
from hookserve.hookspecs.stability import tier_of


class ImplementationRow(msgspec.Struct, frozen=True):
    identity: str
    where: str
    """``file:line``."""


class HookRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    call: str
    """``"collect"``, ``"first"``, ``"pipeline"`` or ``"notify"``."""
    roles: list[str]
    failure: str
    tier: str
    implementations: list[ImplementationRow]
    """In call order."""


def hook_rows(reports: Sequence[PluginReport]) -> list[HookRow]:
    """The hooks in the order of their specifications."""
    return [_row(info, reports) for info in read_specs(specs).values()]


def _row(info: HookInfo, reports: Iterable[PluginReport]) -> HookRow:
    found = {
        (hook.position, ImplementationRow(report.identity, hook.where))
        for report in reports
        for hook in report.hooks
        if hook.name == info.name and hook.position is not None
    }
    return HookRow(
        name=info.name,
        call=info.call,
        roles=list(info.roles),
        failure=info.failure,
        tier=tier_of("hook", info.name),
        implementations=[row for _, row in sorted(found, key=_place)],
    )


def _place(found: tuple[int, ImplementationRow]) -> tuple[int, str]:
    """Processes that load other plugins count from another one."""
    position, row = found
    return position, row.identity


def format_hooks(rows: Iterable[HookRow]) -> str:
    """A line for each hook, and one below it for each implementation."""
    lines = []
    for row in rows:
        roles = ", ".join(row.roles)
        lines.append(f"{row.name}  {row.call}; in {roles}; failure: {row.failure}; {row.tier}")
        lines += [f"  {number}. {one.identity}  {one.where}" for number, one in _numbered(row)]
    return "\n".join(lines)


def _numbered(row: HookRow) -> Iterable[tuple[int, ImplementationRow]]:
    return enumerate(row.implementations, 1)
