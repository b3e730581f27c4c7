"""The older path of ``vllm.inputs``."""

from __future__ import annotations

from .llm import PromptType, SingletonPrompt, TextPrompt, TokensPrompt
from .llm import __surface__ as _SURFACE

__older_path_of__ = "vllm.inputs"

__all__ = ["PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]

__surface__ = dict(_SURFACE)
