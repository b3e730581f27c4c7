"""The package's own names; each is imported when it is first asked for, the version each time."""

from __future__ import annotations

import importlib
from typing import Any

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

_HOMES = {
    "AsyncEngineArgs": ".engine.arg_utils",
    "AsyncLLMEngine": ".engine.async_llm_engine",
    "ClassificationOutput": ".outputs",
    "ClassificationRequestOutput": ".outputs",
    "CompletionOutput": ".outputs",
    "EmbeddingOutput": ".outputs",
    "EmbeddingRequestOutput": ".outputs",
    "EngineArgs": ".engine.arg_utils",
    "LLM": ".entrypoints.llm",
    "LLMEngine": ".engine.llm_engine",
    "ModelRegistry": ".model_executor.models.registry",
    "PoolingOutput": ".outputs",
    "PoolingParams": ".pooling_params",
    "PoolingRequestOutput": ".outputs",
    "PromptType": ".inputs",
    "RequestOutput": ".outputs",
    "SamplingParams": ".sampling_params",
    "ScoringOutput": ".outputs",
    "ScoringRequestOutput": ".outputs",
    "TextPrompt": ".inputs",
    "TokensPrompt": ".inputs",
}
_VERSIONS = ("__version__", "__version_tuple__")

__all__ = [*_HOMES, *_VERSIONS]

__surface__ = {
    "AsyncEngineArgs": "live: the arguments of AsyncLLM and of server run",
    "AsyncLLMEngine": "live: the older name of AsyncLLM",
    "ClassificationOutput": "shape: importable; no classifying model is served",
    "ClassificationRequestOutput": "shape: importable; no classifying model is served",
    "CompletionOutput": "live: one sequence of a RequestOutput",
    "EmbeddingOutput": "shape: importable; no embedding model is served",
    "EmbeddingRequestOutput": "shape: importable; no embedding model is served",
    "EngineArgs": "live: the arguments of every engine; what is patched here is on the path",
    "LLM": "live: generates in this process",
    "LLMEngine": "live: what LLM runs on",
    "ModelRegistry": "live: fills the registry of models",
    "PoolingOutput": "shape: importable; no pooling model is served",
    "PoolingParams": "shape: holds what a pooling request asks; no pooling model is served",
    "PoolingRequestOutput": "shape: importable; no pooling model is served",
    "PromptType": "live: the forms of a prompt that LLM.generate takes",
    "RequestOutput": "live: what LLM.generate and AsyncLLM.generate give back",
    "SamplingParams": "live: how one request is sampled",
    "ScoringOutput": "shape: importable; no scoring model is served",
    "ScoringRequestOutput": "shape: importable; no scoring model is served",
    "TextPrompt": "live: a prompt of text",
    "TokensPrompt": "live: a prompt of token ids",
    "__version__": "live: the version that this plugin is shown",
    "__version_tuple__": "live: the same as numbers",
    "parser": "refused: parsers of tool calls and of reasoning are registered each by its own "
    "manager, in vllm.tool_parsers and vllm.reasoning",
    "initialize_ray_cluster": "refused: there is no Ray executor; ranks are processes of one "
    "machine (--tensor-parallel-size)",
}

_find = names_from(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _VERSIONS:
        return getattr(importlib.import_module(".version", __name__), name)
    return _find(name)
