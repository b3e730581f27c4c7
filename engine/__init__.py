"""Requests to tokens and text: configuration, scheduler, KV cache, workers, loaders.

What is for use in Python is found here at its first use, so that importing this costs nothing:
``LLM``, ``AsyncLLM``, ``LLMEngine``, ``SamplingParams``, the arguments and the outputs. Knows no
HTTP.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "hookserve.engine":
    raise ImportError("import hookserve.engine: the folder engine is installed under that name")

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .engine_args import AsyncEngineArgs, EngineArgs
    from .llm import LLM
    from .llm_engine import LLMEngine
    from .outputs import CompletionOutput, Logprob, RequestOutput
    from .sampling_params import SamplingParams
    from .sampling_rules import RequestOutputKind
    from .structured_outputs import StructuredOutputsParams

_HOME = {
    "LLM": "llm",
    "AsyncEngineArgs": "engine_args",
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "EngineArgs": "engine_args",
    "LLMEngine": "llm_engine",
    "Logprob": "outputs",
    "RequestOutput": "outputs",
    "RequestOutputKind": "sampling_rules",
    "SamplingParams": "sampling_params",
    "StructuredOutputsParams": "structured_outputs",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
