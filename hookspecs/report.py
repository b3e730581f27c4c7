"""``PluginReport``: what the host tells people about one plugin, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .errors import traceback_of
from .plugin import Implementation, Plugin
from .types import ROLES

if TYPE_CHECKING:
    from .guard import Guard
    from .hook import Hook
    from .registry import Claim, Registry


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

    def state_text(self) -> str:
        """The state; of one that won its name and was not needed so far that it was never used."""
        return "never used" if self.state == "active" and not self.used else self.state


class HookReport(msgspec.Struct, frozen=True, kw_only=True):
    """One hook that a plugin implements, with its counters in this process."""

    name: str
    roles: list[str]
    where: str
    called_here: bool
    """Whether the hook runs in a role of this process, and was not switched off."""
    position: int | None = None
    """Its place in the call order of this process, from 0; ``None`` where it is not called."""
    calls: int = 0
    errors: int = 0
    last_error: str | None = None
    sampled: int = 0
    """How many calls were timed."""
    sampled_s: float = 0.0
    """Seconds that those took together."""
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
    uncalled_patches: list[str] = []
    """Those of them that nothing has called so far in this process. What is no Python function,
    and no class with a constructor of its own, does not tell."""

    def hooks_by_role(self) -> dict[str, list[str]]:
        """The hooks that run in each of the roles that the plugin is loaded in."""
        return {
            role: [hook.name for hook in self.hooks if role in hook.roles] for role in self.roles
        }

    def state_text(self) -> str:
        """State, and why, in a few words."""
        if self.state == "out":
            return f"out at stage '{self.stage}': {self.error}"
        if self.state == "blocked":
            return f"blocked by {self.reason}"
        return f"{self.state} ({self.reason})" if self.reason else self.state


class OpReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is built for one op of the model that a worker has."""

    op: str
    """The registered name."""
    class_name: str
    """Empty where the op is no class of its own."""
    implementation: str
    """``"torch"``, the name of a provider or of an attention backend, or the class that is built in
    the op's place."""
    owner: str
    """The plugin's identity; ``"hookserve"``: nobody else's."""
    reason: str
    built: int
    """How many layers were built."""
    calls: int
    """How often those were called."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """The plugins of one process, or why it does not tell of them."""

    process: str
    """``"front"``, ``"engine"``, ``"worker 0"`` and so on."""
    pid: int | None = None
    roles: list[str] = []
    plugins: list[PluginReport] = []
    """In call order."""
    ops: list[OpReport] = []
    """Of a worker that has its model."""
    problem: str | None = None
    """Why there are no reports: no answer in time, or nobody to answer."""


def plugin_report(
    plugin: Plugin,
    hooks: Mapping[str, Hook],
    guards: Mapping[str, Guard],
    registries: Iterable[Registry],
) -> PluginReport:
    """All that is known of a plugin: its record, what calls count and what registries decided.

    Args:
        hooks: every hook of the process, by name.
        guards: the plugin's own implementations in this process, also where they are out by now.
    """
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
        hooks=[
            _hook_report(each, hooks[each.info.name], guards.get(each.info.name))
            for each in plugin.implementations
        ],
        declarations=[
            _declaration_report(claim)
            for registry in registries
            for claim in registry.all_claims()
            if claim.plugin is plugin
        ]
        + _yielded(plugin),
        load_ms=plugin.load_ms,
        config=dict(plugin.config),
        warnings=list(plugin.warnings),
        patches=list(plugin.patches),
        uncalled_patches=[name for name, call in plugin.patch_calls.items() if not call.called],
    )


def _hook_report(implementation: Implementation, hook: Hook, guard: Guard | None) -> HookReport:
    """
    Args:
        guard: ``None``: the hook is never called in this process.
    """
    report = HookReport(
        name=hook.info.name,
        roles=list(hook.info.roles),
        where=implementation.where,
        called_here=guard in hook.guards,
        position=hook.guards.index(guard) if guard in hook.guards else None,
        switched_off=guard in hook.switched_off,
    )
    if guard is None:
        return report
    return msgspec.structs.replace(
        report,
        calls=hook.calls_of(guard),
        errors=guard.errors,
        last_error=guard.last_error,
        sampled=guard.sampled,
        sampled_s=guard.sampled_s,
        mean_us=guard.sampled_s / guard.sampled * 1e6 if guard.sampled else None,
    )


def _yielded(plugin: Plugin) -> list[DeclarationReport]:
    """What its code asked for, found taken, and left at that."""
    asked = {} if plugin.registrar is None else plugin.registrar.yielded
    return [
        DeclarationReport(
            kind=kind, name=name, target="not registered", state=f"yielded to {owner}"
        )
        for (kind, name), owner in asked.items()
    ]


def _declaration_report(claim: Claim) -> DeclarationReport:
    return DeclarationReport(
        kind=claim.kind,
        name=claim.name,
        target=claim.target_text(),
        state=claim.state,
        overrides=claim.overrides,
        used=claim.used,
    )
