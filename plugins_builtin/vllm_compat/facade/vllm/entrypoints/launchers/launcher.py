"""What comes before a server listens."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "setup_server": "refused: the server binds its own address; start it with `server run`",
}
