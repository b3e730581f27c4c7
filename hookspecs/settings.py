"""What the operator said about plugins: plain data that crosses processes unchanged.

Parsing flags and the environment is the server's; matching names is ``discovery``'s.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .markers import HookInfo

CRASH_STAGE = "crash"
"""Of a plugin whose code ran when a process ended without a word."""


class Denied(msgspec.Struct, frozen=True):
    """A plugin that the parent put out in every process, and why."""

    identity: str
    process: str
    """Where it failed: ``"front"``, ``"engine"``, ``"worker"``."""
    stage: str
    """``"discover"``, ``"import"``, ``"register"``, ``"run"``, ``"crash"``."""
    error: str


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which plugins are wanted. Entries are ``name``, ``dist/name``, ``group:name`` or
    ``dist:group:name``; ``None`` means that the operator said nothing."""

    allow: tuple[str, ...] | None = None
    """``--plugins``: the only third parties to load; empty means none."""
    deny: tuple[str, ...] = ()
    """``--disable-plugins``; wins over every other list."""
    require: tuple[str, ...] = ()
    """``--require-plugins``: their failure stops the start."""
    enable_endpoints: tuple[str, ...] = ()
    """``--enable-endpoints``: plugins (or endpoint names) whose routes are opened."""
    adapter_lists: dict[str, str] = {}
    """What the operator said in other hosts' own lists of plugins, as it was written, by the
    adapter that reads it; absent: nothing was said there."""
    no_plugins: bool = False
    """``--no-plugins``: built-ins alone."""
    files: tuple[str, ...] = ()
    """``--plugin``: files or modules that are not installed, loaded in every process."""
    prefer: tuple[str, ...] = ()
    """``KIND:NAME=IDENTITY``: decides between two claims."""
    platform: str | None = None
    """``--platform``: a platform's name; ``None`` means automatic."""
    denied: tuple[Denied, ...] = ()
    """The parent's own decisions: plugins that failed somewhere."""
    config: dict[str, Any] = {}
    """Each plugin's own section, keyed by entry or identity."""
    cache_dir: str | None = None
    """Where plugins' cache folders are made; ``None``: ``~/.cache/hookserve``."""
    front_hook_timeout_s: float = 5.0
    """``--front-hook-timeout``: for one call of a hook of the front, seconds."""
    step_hook_timeout_s: float = 1.0
    """``--step-hook-timeout``: for one call of a hook of engine or worker, seconds."""
    startup_hook_timeout_s: float = 60.0
    """``--startup-hook-timeout``: for an import or one call of a hook of the start, seconds."""
    trace_hooks: str | None = None
    """``--trace-hooks``: log each call of what matches."""

    def budget_s(self, info: HookInfo) -> float:
        """For one call of one implementation of a hook, seconds."""
        if info.failure == "refuse":
            return self.startup_hook_timeout_s
        return self.front_hook_timeout_s if "front" in info.roles else self.step_hook_timeout_s
