"""Parsers of tool calls, and their registry."""

from __future__ import annotations

from .abstract_tool_parser import ToolParser, ToolParserManager
from .abstract_tool_parser import __surface__ as _ABSTRACT

__all__ = ["ToolParser", "ToolParserManager"]

__surface__ = dict(_ABSTRACT)
