"""The older path of ``vllm.tool_parsers.abstract_tool_parser``."""

from __future__ import annotations

from ....tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from ....tool_parsers.abstract_tool_parser import __surface__ as _SURFACE

__all__ = ["ToolParser", "ToolParserManager"]

__surface__ = dict(_SURFACE)
