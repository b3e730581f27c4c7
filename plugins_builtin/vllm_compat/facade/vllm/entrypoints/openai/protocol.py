"""The older path of the types of requests and answers."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

from .chat_completion.protocol import __surface__ as _CHAT
from .completion.protocol import __surface__ as _COMPLETION
from .engine.protocol import __surface__ as _ENGINE
from .responses.protocol import __surface__ as _RESPONSES

_HOMES = {
    **dict.fromkeys(_CHAT, ".chat_completion.protocol"),
    **dict.fromkeys(_COMPLETION, ".completion.protocol"),
    **dict.fromkeys(_RESPONSES, ".responses.protocol"),
    **dict.fromkeys(_ENGINE, ".engine.protocol"),
}

__older_path_of__ = "the modules named protocol under vllm.entrypoints"

__all__ = [*_HOMES]

__surface__ = {**_CHAT, **_COMPLETION, **_RESPONSES, **_ENGINE}

__getattr__ = names_from(__name__, _HOMES)
