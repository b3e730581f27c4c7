"""``PluginReport``: what the host tells people about one plugin, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import traceback_of
from .plugin import Plugin
from .types import ROLES


class DeclarationReport(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a plugin declared, and what became of it."""

    kind: str
    name: str
    target: str
    state: str
    """``"active"``, ``"overridden by X"``, ``"yielded to X"``, ``"same as X"``, ``"closed"``,
    ``"in conflict with X"``."""
    overrides: str | None = None
    used: bool = False
    """Whether the host has imported the target in this process."""


class HookReport(msgspec.Struct, frozen=True, kw_only=True):
    """One hook that a plugin implements, with its counters in this process."""

    name: str
    roles: list[str]
    where: str
    called_here: bool
    """Whether the hook runs in a role of this process, and was not switched off."""
    errors: int = 0
    mean_us: float | None = None
    """Mean of the sampled calls, microseconds; ``None`` before the first sample."""
    switched_off: bool = False


class PluginReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known of one plugin in this process."""

    identity: str
    name: str
    group: str
    distribution: str | None
    version: str | None
    file: str | None
    api: str
    """The range of the hook API that it wants; empty: any."""
    roles: list[str]
    """Where it may be loaded."""
    state: str
    """``"found"`` (not loaded), ``"active"``, ``"blocked"``, ``"superseded"``, ``"out"``,
    ``"other role"``."""
    reason: str = ""
    stage: str | None = None
    error: str | None = None
    traceback: str | None = None
    """Of the exception that put it out in this process."""
    required: bool = False
    before: list[str] = []
    """The plugins that it wants to be called before; ``after`` likewise."""
    after: list[str] = []
    commands: list[str] = []
    """The verbs of the command line that its ``hookserve.toml`` names."""
    hooks: list[HookReport] = []
    declarations: list[DeclarationReport] = []
    load_ms: float | None = None
    config: dict[str, Any] = {}
    warnings: list[str] = []
    """What it did to its process, and what in it will not work."""
    patches: list[str] = []
    """The host's own attributes that it has replaced, as ``module:qualname``."""

    def state_text(self) -> str:
        """State, and why, in a few words."""
        if self.state == "out":
            return f"out at stage '{self.stage}': {self.error}"
        if self.state == "blocked":
            return f"blocked by {self.reason}"
        return f"{self.state} ({self.reason})" if self.reason else self.state


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The plugins of one process, or why it does not tell of them."""

    process: str
    """``"front"``, ``"engine"``, ``"worker 0"`` and so on."""
    pid: int | None = None
    roles: list[str] = []
    plugins: list[PluginReport] = []
    """In call order."""
    problem: str | None = None
    """Why there are no reports: no answer in time, or nobody to answer."""


def plugin_report(
    plugin: Plugin, hooks: list[HookReport], declarations: list[DeclarationReport]
) -> PluginReport:
    """The report of a plugin, around what calls and registries know of it."""
    return PluginReport(
        identity=plugin.identity,
        name=plugin.name,
        group=plugin.group,
        distribution=plugin.distribution,
        version=plugin.version,
        file=plugin.file,
        api=plugin.facts.api,
        roles=[role for role in ROLES if role in plugin.facts.roles],
        state=plugin.state,
        reason=plugin.reason,
        stage=plugin.stage,
        error=plugin.error,
        traceback=None if plugin.exception is None else traceback_of(plugin.exception),
        required=plugin.must_work,
        before=list(plugin.facts.before),
        after=list(plugin.facts.after),
        commands=list(plugin.facts.commands),
        hooks=hooks,
        declarations=declarations,
        load_ms=plugin.load_ms,
        config=dict(plugin.config),
        warnings=list(plugin.warnings),
        patches=list(plugin.patches),
    )
