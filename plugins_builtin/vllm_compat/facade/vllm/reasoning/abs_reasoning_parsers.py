"""The base of parsers of reasoning, and their registry."""

from __future__ import annotations

from hookserve.engine.text.reasoning_parser import ReasoningParser
from hookserve.plugins_builtin.vllm_compat.parser_manager import ParserManager
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

from ..utils.import_utils import import_plugin

__all__ = ["ReasoningParser", "ReasoningParserManager"]

__surface__ = {
    "ReasoningParser": "live: base of the parsers of reasoning that chats use, in the front alone; "
    "built as (tokenizer, chat_template_kwargs=...) for each choice of a request. Called: "
    "adjust_request, is_reasoning_end of the prompt, extract_reasoning, "
    "extract_reasoning_streaming and is_reasoning_end_streaming where a class has the former, "
    "extract_content_ids, count_reasoning_tokens; read: reasoning_end_str. Not asked: "
    "adjust_initial_state_from_prompt, prepare_structured_tag",
    "ReasoningParserManager": "live: registers parsers for --reasoning-parser, also by a file that "
    "--reasoning-parser-plugin loads; what is registered so far is listed, built-in parsers too",
}


class ReasoningParserManager(ParserManager):
    """Registers for the plugin whose code is running.

    Attributes:
        reasoning_parsers: the classes by name.
    """

    kind = "reasoning_parser"
    base = ReasoningParser
    registered = reasoning_parsers = RegistryView(kind)

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type[ReasoningParser]:
        """Raises ``KeyError`` with the names that there are."""
        found: type[ReasoningParser] = cls.find(name)
        return found

    @classmethod
    def import_reasoning_parser(cls, plugin_path: str) -> None:
        """Import a file, or a module, that registers parsers; what it raises is logged."""
        import_plugin(plugin_path)
