"""Models and what they are built of."""

__surface__: dict[str, str] = {}
