"""What layers raise that their callers tell apart."""

from __future__ import annotations


class PeerLostError(RuntimeError):
    """Another rank ended, or cannot be reached, while this one was waiting for it."""
