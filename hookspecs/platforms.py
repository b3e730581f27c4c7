"""Which platform a process uses, of those that answered on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import targets
from .context import enter
from .errors import PluginConflictError, UnknownNameError, did_you_mean
from .notify_loop import caught
from .plugin import Plugin
from .registry import Claim
from .selection import matches


def choose_platform(
    claims: Sequence[Claim], wanted: str | None, say: Callable[[str], None]
) -> Claim:
    """What ``pick_platform`` picks, for good: what becomes of the others is noted and told.

    Raises:
        UnknownNameError, PluginConflictError: as it does.
    """
    return _settle(pick_platform(claims, wanted), claims, say)


def pick_platform(claims: Sequence[Claim], wanted: str | None) -> Claim:
    """The named platform, or the class that is named by its path, else the one third party's, else
    the first built-in one.

    Raises:
        UnknownNameError: if the named one did not answer, or none did.
        PluginConflictError: if several fit and none is named.
    """
    names = [claim.name for claim in claims]
    if wanted is not None and wanted.strip():
        entry = wanted.strip()
        fitting = [c for c in claims if entry == c.name or matches(entry, c.plugin)]
        if not fitting and targets.is_path(entry):
            return _by_path(entry)
        if not fitting:
            raise UnknownNameError(
                f"--platform: '{entry}' did not answer on this machine{did_you_mean(entry, names)}"
            )
    else:
        fitting = [claim for claim in claims if not claim.plugin.is_builtin] or list(claims[:1])
    if not fitting:
        raise UnknownNameError("no platform answered on this machine")
    if len(fitting) > 1:
        both = " and ".join(f"{claim.owner} ({claim.plugin.file})" for claim in fitting)
        raise PluginConflictError(
            f"the platforms {both} both answered on this machine; choose one with --platform "
            f"{fitting[0].owner}, or leave one out with --disable-plugins"
        )
    return fitting[0]


def is_platform(plugin: Plugin) -> bool:
    """Whether it says that a platform is all that it offers."""
    return tuple(plugin.facts.hooks or ()) == ("platform",)


def early_claims(plugins: Sequence[Plugin]) -> list[Claim]:
    """What the platforms among the loaded plugins answer, before all are asked for their
    declarations: for the module of another one that asks while it is imported. One that raises, or
    that wants a context, is heard when it is asked for good."""
    claims = []
    for plugin in plugins:
        if plugin.state != "active" or not is_platform(plugin):
            continue
        try:
            with enter(plugin):
                path = plugin.instance.platform()
        except caught():
            continue
        if isinstance(path, str):
            claims.append(Claim("platform", plugin.name, path, plugin))
    return claims


def _by_path(path: str) -> Claim:
    """What no plugin declared is its own owner."""
    owner = Plugin(f"path:{path}", path, "path", load=lambda: targets.import_target(path))
    return Claim("platform", path, path, owner, used=True)


def _settle(winner: Claim, claims: Sequence[Claim], say: Callable[[str], None]) -> Claim:
    for claim in claims:
        if claim is winner:
            continue
        if claim.plugin.is_builtin and not winner.plugin.is_builtin:
            claim.state = f"overridden by {winner.owner}"
            winner.overrides = claim.owner
            say(f"platform '{winner.name}': {winner.owner} overrides built-in {claim.owner}")
        else:
            claim.state = f"yielded to {winner.owner}"
    winner.note_use()
    return winner
