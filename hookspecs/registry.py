"""``Registry``: the names of one kind, each with its owner; who wins a name that two claim.

A registry freezes at its first lookup: until then code of a plugin that runs late may still
register, attributed by the context variable. Asking plugins for declarations is ``host``'s.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import targets
from .context import enter, running
from .errors import (
    PluginConflictError,
    PluginError,
    UnknownNameError,
    describe_error,
    did_you_mean,
    nearest,
)
from .notify_loop import caught
from .plugin import Plugin
from .types import OpProvider

logger = logging.getLogger(__name__)


Say = Callable[[str, bool], None]
RunAs = Callable[[Plugin | None], AbstractContextManager[None]]
MAX_OFFERED = 12
"""Names that the message about an unknown one lists."""


@dataclass(eq=False)
class Claim:
    """One plugin's claim on one name. ``state`` is the registry's decision about it."""

    kind: str
    name: str
    target: Any
    """What the declaration points at: text, or an object."""
    plugin: Plugin
    declaration: Any = None
    """The declaration itself (``ModelEntry``, ``Endpoint``, ...)."""
    overrides: str | None = None
    """The owner of the built-in claim that this one beats."""
    state: str = "active"
    """``"active"``, ``"overridden by X"``, ``"yielded to X"``, ``"same as X"``, ``"closed"``,
    ``"in conflict with X"``."""
    used: bool = False
    """Whether the host has imported the target, or chosen this claim, in this process."""
    late: bool = False
    """Whether it was made by code that ran after bootstrap, perhaps in this process alone."""
    made: Any = None
    """The object that its user has made of the target and keeps; of a platform, which is one."""

    def __post_init__(self) -> None:
        if self.declaration is None and self.kind == "op_provider":  # registered by a call
            op, _, name = self.name.partition(".")
            self.declaration = OpProvider(op, name, self.target)

    @property
    def owner(self) -> str:
        return self.plugin.identity

    def target_text(self) -> str:
        return targets.target_text(self.target)

    def note_use(self) -> None:
        """The host imports the target, or chooses this claim."""
        if not self.used:
            logger.debug("plugin %s: first use of %s '%s'", self.owner, self.kind, self.name)
        self.used = True


class Registry:
    """The claims of one kind, in call order.

    Args:
        kind: ``"model"``, ``"platform"``, ...
        chosen_by_name: whether two owners of one name are a conflict.
        prefer: for a name, the plugin that the operator prefers.
        strict: raise at a conflict; otherwise record it in the claims (inspection).
        say: told a line for each decision that an operator should know of, and whether it is
            about a late registration, which other processes may not have.
        run_as: what surrounds the import of a plugin's target.
    """

    def __init__(
        self,
        kind: str,
        *,
        chosen_by_name: bool = True,
        prefer: Mapping[str, Plugin] | None = None,
        strict: bool = True,
        say: Say | None = None,
        run_as: RunAs = enter,
    ) -> None:
        self.kind = kind
        self.chosen_by_name = chosen_by_name
        self.frozen_at: str | None = None
        self._prefer = dict(prefer or {})
        self._strict = strict
        self._say = say
        self._run_as = run_as
        self._claims: list[Claim] = []
        self._active: dict[str, Claim] = {}
        self._resolved: dict[str, Any] = {}

    # -- filling --------------------------------------------------------------------------

    def add(self, claim: Claim) -> bool:
        """Take a claim of a plugin; ``decide`` settles who wins.

        Returns: whether it is new; the same plugin may say the same thing again.

        Raises:
            PluginError: if the same plugin already claims the name with another target.
        """
        for other in self._claims:
            if other.name != claim.name or other.plugin is not claim.plugin:
                continue
            if targets.same_target(other.target, claim.target):
                return False
            raise PluginError(
                claim.owner,
                "register",
                f"registers {self.kind} '{claim.name}' twice, as {other.target_text()} and as "
                f"{claim.target_text()}",
            )
        if not self.chosen_by_name:
            self._tell_apart(claim)
        self._claims.append(claim)
        return True

    def _tell_apart(self, claim: Claim) -> None:
        """Where all are used none gives way: two classes that one function made have one name."""
        for other in self._claims:
            if other.name == claim.name and not targets.same_target(other.target, claim.target):
                claim.name = f"{claim.name} of {claim.owner}"
                return

    def register(self, name: str, target: Any, owner: Plugin | None = None) -> None:
        """A registration made by code that runs late; the owner is whoever is running.

        Raises:
            PluginError: if nobody's code is running, or if the table was already read.
            PluginConflictError: if another third party claims the name.
        """
        plugin = owner or running()
        if plugin is None:
            raise PluginError(
                "(unknown)",
                "register",
                f"{self.kind} '{name}' was registered outside any plugin's code; expected a "
                "registration hook, or code that the host runs for a plugin",
            )
        held = [claim for claim in self._claims if claim.name == name]
        if any(targets.same_target(claim.target, target) for claim in held):
            return
        if self.frozen_at is not None:
            raise PluginError(
                plugin.identity,
                "register",
                f"registers {self.kind} '{name}' too late: the table was read at "
                f"{self.frozen_at}; register it in a hook",
            )
        claim = Claim(self.kind, name, target, plugin, late=True)
        self.add(claim)
        try:
            self.decide([name])
        except PluginConflictError:
            self._claims.remove(claim)
            self.decide([name])
            raise
        logger.info("plugin %s registered %s '%s' late", plugin.identity, self.kind, name)

    def withdraw(self, plugin: Plugin) -> None:
        """Forget every claim of the plugin; what it had beaten is active again."""
        gone = {claim.name for claim in self._claims if claim.plugin is plugin}
        self._claims = [claim for claim in self._claims if claim.plugin is not plugin]
        for name in gone:
            self._resolved.pop(name, None)
        self.decide(gone)

    def decide(self, names: Iterable[str] | None = None) -> None:
        """Settle the winner of the given names, by default of every name.

        Raises:
            PluginConflictError: if two third parties claim one name and nothing decides.
        """
        affected = None if names is None else set(names)
        by_name: dict[str, list[Claim]] = {}
        for claim in self._claims:
            if claim.state != "closed":
                by_name.setdefault(claim.name, []).append(claim)
        winners = {}
        for name, held in by_name.items():
            if affected is not None and name not in affected:
                if name in self._active:
                    winners[name] = self._active[name]
                continue
            for claim in held:
                claim.state, claim.overrides = "active", None
            winners[name] = held[0] if len(held) == 1 else self._winner(name, held)
        self._active = winners

    def _winner(self, name: str, held: list[Claim]) -> Claim:
        preferred = self._prefer.get(name)
        chosen = [claim for claim in held if claim.plugin is preferred]
        if chosen:
            return self._settle(chosen[0], held)
        third = [claim for claim in held if not claim.plugin.is_builtin]
        best = third or held
        first, rest = best[0], best[1:]
        differing = [claim for claim in rest if not targets.same_target(claim.target, first.target)]
        if differing and self.chosen_by_name:
            message = self._conflict(first, differing[0])
            if self._strict:
                raise PluginConflictError(message)
            for claim, other in ((first, differing[0]), (differing[0], first)):
                claim.state = f"in conflict with {other.owner}"
            self._warn(message, held)
            return first
        return self._settle(first, held)

    def _settle(self, winner: Claim, held: list[Claim]) -> Claim:
        for claim in held:
            if claim is winner:
                continue
            if targets.same_target(claim.target, winner.target):
                claim.state = f"same as {winner.owner}"
            elif claim.plugin.is_builtin and not winner.plugin.is_builtin:
                claim.state = f"overridden by {winner.owner}"
                winner.overrides = claim.owner
                self._warn(
                    f"{self.kind} '{winner.name}': {winner.owner} overrides built-in {claim.owner}",
                    held,
                )
            else:
                claim.state = f"yielded to {winner.owner}"
        return winner

    def _warn(self, line: str, held: Iterable[Claim]) -> None:
        if self._say is not None:
            self._say(line, any(claim.late for claim in held))

    def _conflict(self, left: Claim, right: Claim) -> str:
        name = f"{self.kind}:{left.name}"
        return (
            f"{self.kind} '{left.name}' is claimed by {left.owner} ({left.plugin.file}) as "
            f"{left.target_text()} and by {right.owner} ({right.plugin.file}) as "
            f"{right.target_text()}; decide with --prefer {name}={left.owner} or "
            f"--prefer {name}={right.owner}, or leave one out with --disable-plugins"
        )

    # -- inspection: does not freeze ------------------------------------------------------

    def claims(self) -> list[Claim]:
        """The winning claim of each name, in call order."""
        return list(self._active.values())

    def all_claims(self) -> list[Claim]:
        """Every claim, also those that lost and those that nobody opened."""
        return list(self._claims)

    def nearest(self, name: str) -> list[str]:
        """The registered names that look most like ``name``, best first."""
        return nearest(name, self._active)

    # -- lookups: the first one freezes ---------------------------------------------------

    def names(self) -> list[str]:
        """The names that somebody holds, in call order."""
        self._freeze()
        return list(self._active)

    def get(self, name: str) -> Claim | None:
        """The winning claim on the name."""
        self._freeze()
        return self._active.get(name)

    def resolve(self, name: str) -> Any:
        """The object behind the name, or behind a class path ``"module:attribute"``; imported
        inside its owner's guard, once. What its module registers then is not too late.

        Raises:
            UnknownNameError: if nobody registered the name.
            PluginError: if the target cannot be imported; the original exception is its cause.
        """
        if name in self._resolved:
            return self._resolved[name]
        claim = self._active.get(name)
        if claim is None and not targets.is_path(name):
            self._freeze()
            raise UnknownNameError(f"{self.kind} '{name}' is not registered{self._others(name)}")
        target: Any = name if claim is None else claim.target
        identity = name if claim is None else claim.owner
        try:
            with self._run_as(None if claim is None else claim.plugin):
                found = targets.import_target(target)
        except caught() as error:
            hint = self._others(name) if claim is None else _own_module(claim, error)
            raise PluginError(
                identity,
                "import",
                f"{self.kind} '{name}': target {targets.target_text(target)} raised "
                f"{describe_error(error)}{hint}",
            ) from error
        finally:
            self._freeze()
        if claim is not None:
            claim.note_use()
        self._resolved[name] = found
        return found

    def _others(self, name: str) -> str:
        """What there is in place of a name that nobody registered, and whose it is."""
        close = did_you_mean(name, list(self._active)) if self.nearest(name) else ""
        offered = [f"{claim.name} of {claim.owner}" for claim in self._active.values()]
        shown = ", ".join(offered[:MAX_OFFERED]) or "nothing"
        shown += f" and {len(offered) - MAX_OFFERED} more" if offered[MAX_OFFERED:] else ""
        return f"{close}; registered: {shown}; a class is named by package.module:Class"

    def _freeze(self) -> None:
        if self.frozen_at is not None:
            return
        frame = sys._getframe(2)
        self.frozen_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _own_module(claim: Claim, error: BaseException) -> str:
    """What the plugin's module is called here, for a target in one that is not there at all. The
    hooks of a plugin that an adapter made are the adapter's."""
    if claim.plugin.adapter:
        return ""
    path = claim.target_text()
    if not isinstance(error, ModuleNotFoundError) or error.name != path.split(".")[0].split(":")[0]:
        return ""
    found = {implementation.function.__module__ for implementation in claim.plugin.implementations}
    return f"; the plugin's own module is {', '.join(sorted(found))}" if found else ""
