"""What a program or a plugin asks of an engine."""

from __future__ import annotations

from hookserve.engine.prompt_client import PromptClient as EngineClient

__all__ = ["EngineClient"]

__surface__ = {
    "EngineClient": "live: the class of what init_state of an endpoint plugin is given, and of "
    "AsyncLLM; sleep, LoRA, profiles, pausing and transfers of weights raise and say why; "
    "get_tokenizer is no coroutine (older vLLM's is awaited; tokenizer is the same); it has no "
    "renderer and no input_processor",
    "StreamingInput": "refused: a prompt is given whole; ask again with more of it",
}
