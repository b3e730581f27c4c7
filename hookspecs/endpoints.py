"""Which declared endpoints are served: built-ins always, a third party's only when opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .plugin import Plugin
from .registry import Claim
from .selection import matches, select
from .settings import PluginSettings


def close_endpoints(
    claims: Sequence[Claim],
    plugins: Sequence[Plugin],
    settings: PluginSettings,
    say: Callable[[str], None],
) -> None:
    """Mark the endpoints that nobody opened as closed, and say how to open each.

    Raises:
        PluginSelectionError: if ``--enable-endpoints`` names neither an endpoint nor a plugin.
    """
    entries = [entry.strip() for entry in settings.enable_endpoints if entry.strip()]
    declared = [claim for claim in claims if claim.kind == "endpoint"]
    names = {claim.name for claim in declared}
    for entry in entries:
        if entry not in names:
            _check_entry(entry, plugins, say)
    for claim in declared:
        plugin = claim.plugin
        if plugin.is_builtin or plugin.is_explicit or plugin.state != "active":
            continue
        if plugin.opens_endpoints:
            continue
        if not any(entry == claim.name or matches(entry, plugin) for entry in entries):
            claim.state = "closed"
            shared = any(other.name == claim.name for other in declared if other is not claim)
            say(
                f"endpoint '{claim.name}' of {plugin.identity} is closed; open it with "
                f"--enable-endpoints {plugin.identity if shared else claim.name}"
            )


def _check_entry(entry: str, plugins: Sequence[Plugin], say: Callable[[str], None]) -> None:
    """An entry that is no endpoint's name must be a plugin's; but one that failed or is blocked
    cannot say how its endpoints are called, and that must not stop the start."""
    silent = [
        f"{plugin.identity}, which {'failed' if plugin.state == 'out' else 'is blocked'}"
        for plugin in plugins
        if plugin.state in ("out", "blocked") and _may_have_endpoints(plugin)
    ]
    if silent and not any(matches(entry, plugin) for plugin in plugins):
        say(
            f"--enable-endpoints: no endpoint is called '{entry}'; perhaps it is one of "
            f"{'; '.join(silent)}"
        )
        return
    plugin = select(entry, plugins, "--enable-endpoints")
    if plugin.state != "active":
        say(f"--enable-endpoints: {plugin.problem() or f'{plugin.identity} is not active'}")


def _may_have_endpoints(plugin: Plugin) -> bool:
    """As far as its ``hookserve.toml`` says."""
    hooks = plugin.facts.hooks
    return "front" in plugin.facts.roles and (hooks is None or "endpoint" in hooks)
