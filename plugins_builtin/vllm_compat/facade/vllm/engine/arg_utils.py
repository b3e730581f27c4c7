"""The arguments of an engine."""

from __future__ import annotations

from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs

__all__ = ["AsyncEngineArgs", "EngineArgs"]

__surface__ = {
    "AsyncEngineArgs": "live: the arguments of AsyncLLM and of server run; an EngineArgs",
    "EngineArgs": "live: create_model_config and create_engine_config are called through the class "
    "by server run, LLM and AsyncLLM, so that a wrapper acts; plain changes of the arguments, and "
    "of what they give back, are taken over with their owner. vLLM's other arguments can be read; "
    "setting one that would have to act raises, and of one that has no effect the log says so",
}
