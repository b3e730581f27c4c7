"""The rows of the table of ops: what is built for each op, whose it is, and how often it ran."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OpRow:
    op: str
    """The registered name."""
    class_name: str
    """Empty where the op is no class of its own."""
    implementation: str
    """``"torch"``, the name of a provider or of an attention backend, or the class that is built in
    the op's place."""
    owner: str
    """A plugin's identity; ``"hookserve"``: nobody else's."""
    reason: str
    built: int = 0
    """How many layers were built."""
    calls: int = 0
    """How often those were called."""
