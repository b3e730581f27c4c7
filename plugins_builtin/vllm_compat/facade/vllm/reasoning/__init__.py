"""Parsers of reasoning, and their registry."""

from __future__ import annotations

from .abs_reasoning_parsers import ReasoningParser, ReasoningParserManager
from .abs_reasoning_parsers import __surface__ as _ABSTRACT

__all__ = ["ReasoningParser", "ReasoningParserManager"]

__surface__ = dict(_ABSTRACT)
