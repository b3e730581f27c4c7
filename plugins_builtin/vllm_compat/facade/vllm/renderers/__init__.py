"""How chats become prompts; that is the engine's input processor's."""

from __future__ import annotations

from hookserve.engine.io_processor import Renderer as BaseRenderer

__all__ = ["BaseRenderer"]

_OWN = (
    "refused: chats are rendered by the model's template, as --chat-template or the hook "
    "before_request changes it"
)
__surface__ = {
    "BaseRenderer": "shape: what an IO processor is built with: config, tokenizer and "
    "get_tokenizer; it renders no chats",
    "RENDERER_REGISTRY": _OWN,
    "renderer_from_config": _OWN,
}
