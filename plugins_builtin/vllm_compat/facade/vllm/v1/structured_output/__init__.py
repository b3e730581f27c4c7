"""Text that must have a form."""

from __future__ import annotations

from hookserve.engine.grammars import Grammars as StructuredOutputManager

__all__ = ["StructuredOutputManager"]

__surface__ = {
    "StructuredOutputManager": "shape: the type of a scheduler's argument, which is None: the "
    "engine follows grammars itself; a grammar backend is added by the hook grammar_backend",
}
