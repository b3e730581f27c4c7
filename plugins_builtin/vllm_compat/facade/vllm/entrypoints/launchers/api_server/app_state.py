"""What the state of the application holds."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "init_app_state": "refused: the server fills its state itself; put what a route needs there in "
    "init_state of an endpoint plugin",
}
