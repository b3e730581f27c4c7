"""The forms of a prompt."""

from __future__ import annotations

from .llm import PromptType, SingletonPrompt, TextPrompt, TokensPrompt
from .llm import __surface__ as _PROMPTS

__all__ = ["PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]

__surface__ = {
    **_PROMPTS,
    "EngineInput": "refused: a prompt is made ready by the engine's own input processor; the hook "
    "before_request sees it",
}
