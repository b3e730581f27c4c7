"""How chats become prompts; that is the engine's input processor's."""

from __future__ import annotations

__all__: list[str] = []

_OWN = (
    "refused: chats are rendered by the model's template, as --chat-template or the hook "
    "before_request changes it"
)
__surface__ = {
    "BaseRenderer": _OWN,
    "RENDERER_REGISTRY": _OWN,
    "renderer_from_config": _OWN,
}
