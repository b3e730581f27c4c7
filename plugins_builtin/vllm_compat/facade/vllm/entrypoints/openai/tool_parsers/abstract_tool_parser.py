"""The older path of ``vllm.tool_parsers.abstract_tool_parser``."""

from __future__ import annotations

from ....tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from ....tool_parsers.abstract_tool_parser import __surface__ as _SURFACE

__older_path_of__ = "vllm.tool_parsers.abstract_tool_parser"

__all__ = ["ToolParser", "ToolParserManager"]

__surface__ = dict(_SURFACE)
