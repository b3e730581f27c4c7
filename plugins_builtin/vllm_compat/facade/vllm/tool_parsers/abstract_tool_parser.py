"""The base of parsers of tool calls, and their registry."""

from __future__ import annotations

from hookserve.engine.text.tool_parser import ToolParser
from hookserve.plugins_builtin.vllm_compat.parser_manager import ParserManager
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

from ..utils.import_utils import import_plugin

__all__ = ["ToolParser", "ToolParserManager"]

__surface__ = {
    "ToolParser": "live: base of the parsers of tool calls that chats use; built as (tokenizer, "
    "tools) for each choice of a request. Called: adjust_request, extract_tool_calls, "
    "extract_tool_calls_streaming where a class has one, get_remaining_unstreamed_args; read: "
    "supports_required_and_named, start_markers. Not asked: get_structural_tag and what belongs "
    "to it",
    "ToolParserManager": "live: registers parsers for --tool-call-parser, also by a file that "
    "--tool-parser-plugin loads; what is registered so far is listed, built-in parsers too",
}


class ToolParserManager(ParserManager):
    """Registers for the plugin whose code is running.

    Attributes:
        tool_parsers: the classes by name.
    """

    kind = "tool_parser"
    base = ToolParser
    registered = tool_parsers = RegistryView(kind)

    @classmethod
    def get_tool_parser(cls, name: str) -> type[ToolParser]:
        """Raises ``KeyError`` with the names that there are."""
        found: type[ToolParser] = cls.find(name)
        return found

    @classmethod
    def import_tool_parser(cls, plugin_path: str) -> None:
        """Import a file, or a module, that registers parsers; what it raises is logged."""
        import_plugin(plugin_path)
