"""``Plugin``: the host's record of one plugin, from its discovery to its end.

Discovery creates it, loading and the registries fill it in, reports read it. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .markers import HookInfo
from .types import ROLES, Role

if TYPE_CHECKING:
    from .first_call import FirstCall
    from .registrar import Registrar

State = Literal["found", "active", "blocked", "superseded", "out", "other role"]

DEFAULT_ROLES: frozenset[Role] = frozenset(ROLES) - {"cli"}
"""Where a plugin is loaded that says nothing: everywhere but in the command line."""

BUILTIN_GROUP = "builtin"
FILE_GROUP = "file"
OBJECT_GROUP = "object"
ENTRY_POINT_GROUP = "hookserve"


def is_builtin(identity: str) -> bool:
    """Whether it is the identity of one of the host's own plugins."""
    return f":{BUILTIN_GROUP}:" in identity


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a plugin before it is imported (``hookserve.toml``)."""

    api: str = ""
    """The range of ``API_VERSION`` that it accepts; empty: any."""
    requires: str = ""
    """The range of the distribution ``hookserve`` in its own requirements; empty: any."""
    roles: frozenset[Role] = DEFAULT_ROLES
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    hooks: tuple[str, ...] | None = None
    """The hooks that it says it has; ``None``: it does not say."""
    commands: tuple[str, ...] = ()
    """The verbs that it says it adds to the command line, so that they can be listed."""
    essential: bool = False
    """Built-ins only: cannot be disabled, and its failure stops the start."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One accepted hook implementation of a plugin."""

    info: HookInfo
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    """Names of the arguments that it wants, in its own order."""
    where: str
    """``file:line``."""
    tryfirst: bool = False
    trylast: bool = False
    buffer: bool = False
    """It wants the collected text, in one call."""


@dataclass(slots=True, eq=False, repr=False)
class Plugin:
    """One plugin in this process. ``load`` imports it and returns module, class or object."""

    identity: str
    name: str
    group: str
    load: Callable[[], Any]
    distribution: str | None = None
    version: str | None = None
    file: str | None = None
    facts: Facts = field(default_factory=Facts)
    fault: str | None = None
    """A fault found before import; such a plugin is never imported."""
    required: bool = False
    module: str | None = None
    """Where its code is, if that is not the module of what ``load`` returns."""
    adapter: str = ""
    """Name of the adapter that made it of another host's entry point, and whose lists rule it."""
    opens_endpoints: bool = False
    """Whether that adapter's list opens the routes that it declares."""

    # Filled in by the host.
    state: State = "found"
    reason: str = ""
    """Why it is blocked, superseded or not for this role; how its failure came about."""
    stage: str | None = None
    error: str | None = None
    exception: BaseException | None = None
    instance: Any = None
    """What is registered with pluggy."""
    number: int = 0
    """What stands for it in a ``CrashMark``; 0: nothing."""
    slot: memoryview | None = None
    """Where its number is written while its code runs; ``None``: nobody looks."""
    registrar: Registrar | None = None
    """Takes what its code registers by itself; the host's."""
    explain: Callable[[BaseException], str | None] | None = None
    """Says what an error of its code means that is about another host's modules."""
    implementations: list[Implementation] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    load_ms: float | None = None
    warnings: list[str] = field(default_factory=list)
    patches: list[str] = field(default_factory=list)
    """The host's own attributes that it has replaced, as ``module:qualname``."""
    patch_calls: dict[str, FirstCall] = field(default_factory=dict)
    """By the name of a patch, whether it was called since; of those that can tell."""
    engine_arguments: list[str] = field(default_factory=list)
    """Those that it has set; they stay as they are when it goes out."""

    def __repr__(self) -> str:
        return f"Plugin({self.identity!r}, {self.state!r})"

    @property
    def is_builtin(self) -> bool:
        return self.group == BUILTIN_GROUP

    @property
    def is_explicit(self) -> bool:
        """Whether the operator or the program handed it over: a file, a module, an object."""
        return self.group in (FILE_GROUP, OBJECT_GROUP)

    @property
    def call_key(self) -> tuple[str, str, str]:
        """By what third parties are called one after the other, where nobody says otherwise: native
        ones by identity, then another host's by the name of the entry point."""
        return self.adapter, self.name if self.adapter else self.identity, self.identity

    @property
    def must_work(self) -> bool:
        return self.required or self.facts.essential

    def block(self, reason: str) -> None:
        """Leave it out without having imported it."""
        self.state, self.reason = "blocked", reason

    def fail(self, stage: str, error: str, exception: BaseException | None = None) -> None:
        """Put it out; its registrations are the host's to withdraw."""
        self.state, self.stage, self.error, self.exception = "out", stage, error, exception

    def problem(self) -> str | None:
        """One line about a plugin that is blocked or out, else ``None``."""
        if self.state == "out":
            return f"{self.identity} is out, failed at stage '{self.stage}': {self.error}"
        if self.state == "blocked":
            return f"{self.identity} is blocked by {self.reason}"
        return None
