"""The older path of ``vllm.renderers.chat_utils``."""

from __future__ import annotations

from ..renderers.chat_utils import (
    ChatTemplateContentFormatOption,
    ConversationMessage,
    load_chat_template,
    make_tool_call_id,
)
from ..renderers.chat_utils import __surface__ as _SURFACE

__older_path_of__ = "vllm.renderers.chat_utils"

__all__ = [
    "ChatTemplateContentFormatOption",
    "ConversationMessage",
    "load_chat_template",
    "make_tool_call_id",
]

__surface__ = dict(_SURFACE)
