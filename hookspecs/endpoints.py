"""Which declared endpoints are served: built-ins always, a third party's only when opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .plugin import Plugin
from .registry import Claim
from .selection import matches, select
from .settings import PluginSettings
from .types import Role


def close_endpoints(
    claims: Sequence[Claim],
    plugins: Sequence[Plugin],
    settings: PluginSettings,
    roles: frozenset[Role],
    say: Callable[[str], None],
) -> None:
    """Mark the endpoints that nobody opened as closed, and say how to open each.

    Raises:
        PluginSelectionError: if ``--enable-endpoints`` names neither an endpoint nor a plugin.
    """
    if "front" not in roles:
        return
    entries = [entry.strip() for entry in settings.enable_endpoints if entry.strip()]
    declared = [claim for claim in claims if claim.kind == "endpoint"]
    names = {claim.name for claim in declared}
    for entry in entries:
        if entry not in names:
            plugin = select(entry, plugins, "--enable-endpoints")
            if plugin.state != "active":
                say(f"--enable-endpoints: {plugin.problem() or f'{plugin.identity} is not active'}")
    for claim in declared:
        plugin = claim.plugin
        if plugin.is_builtin or plugin.is_explicit:
            continue
        if not any(entry == claim.name or matches(entry, plugin) for entry in entries):
            claim.state = "closed"
            say(
                f"endpoint '{claim.name}' of {plugin.identity} is closed; open it with "
                f"--enable-endpoints {claim.name}"
            )
