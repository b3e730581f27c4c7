"""Messages of a chat, their template, and ids of calls."""

from __future__ import annotations

import os
from typing import Any, Literal, TypedDict

from hookserve.engine.regular_file import read_text
from hookserve.engine.text.tool_calls import make_call_id

__all__ = [
    "ChatTemplateContentFormatOption",
    "ConversationMessage",
    "load_chat_template",
    "make_tool_call_id",
]

__surface__ = {
    "ChatTemplateContentFormatOption": "shape: the words of --chat-template-content-format; what a "
    "template needs is found out",
    "ConversationMessage": "live: a message as templates are given it",
    "load_chat_template": "live: a template, or what a file holds",
    "make_tool_call_id": "live: a new id of a call",
    "parse_chat_messages": "refused: messages are read by the server's own routes; the hook "
    "before_request sees them",
}

ChatTemplateContentFormatOption = Literal["auto", "string", "openai"]


class ConversationMessage(TypedDict, total=False):
    role: str
    content: str | list[dict[str, str]] | None
    tool_call_id: str | None
    name: str | None
    tool_calls: list[dict[str, Any]] | None
    reasoning: str | None


def load_chat_template(
    chat_template: str | os.PathLike[str] | None, *, is_literal: bool = False
) -> str | None:
    """
    Args:
        is_literal: it is the template itself.

    Raises:
        hookserve.engine.errors.ModelFileError: a file that cannot be read.
        ValueError: it is neither a file nor a template.
    """
    if chat_template is None:
        return None
    given = os.fspath(chat_template)
    if not is_literal and os.path.isfile(given):
        return read_text(given)
    if not is_literal and "{" not in given:
        raise ValueError(f"chat template {given!r}: expected a file that exists, or a template")
    return given


def make_tool_call_id(id_type: str = "random", func_name: str | None = None, idx: int = 0) -> str:
    """
    Args:
        id_type: ``kimi_k2`` makes an id of name and number; another a random one.
    """
    return f"functions.{func_name}:{idx}" if id_type == "kimi_k2" else make_call_id()
