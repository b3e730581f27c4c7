"""``AsyncLLM``: an engine in a process of its own, for programs with an event loop."""

from __future__ import annotations

from hookserve.engine.async_llm import AsyncLLM

__all__ = ["AsyncLLM"]

__surface__ = {
    "AsyncLLM": "live: the engine of programs that make one (from_engine_args, "
    "from_vllm_config; stat_loggers of their own); the server has a "
    "client of its own over its engine (vllm.engine.protocol.EngineClient), so a patch of generate "
    "here does not see the requests of its routes. get_tokenizer is no coroutine, as in vLLM 0.32: "
    "code for an older one awaits it, and can read the attribute tokenizer, which every one has",
}
