"""The older path of ``vllm.tool_parsers``."""

from __future__ import annotations

from ....tool_parsers import ToolParser, ToolParserManager
from ....tool_parsers import __surface__ as _SURFACE

__older_path_of__ = "vllm.tool_parsers"

__all__ = ["ToolParser", "ToolParserManager"]

__surface__ = dict(_SURFACE)
