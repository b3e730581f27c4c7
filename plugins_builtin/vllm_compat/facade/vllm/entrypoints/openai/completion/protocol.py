"""Requests and answers of ``/v1/completions``. They are pydantic models: they need
``hookserve[vllm-compat]``.
"""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

_HOMES = dict.fromkeys(
    ("CompletionRequest", "CompletionResponse", "CompletionResponseChoice"),
    "hookserve.plugins_builtin.vllm_compat.openai_models",
)

__all__ = [*_HOMES]

_OWN = "shape: for the routes of a plugin's own; the server reads and writes its own by itself"
__surface__ = {
    **dict.fromkeys(__all__, _OWN),
    "CompletionRequest": f"{_OWN}; to_sampling_params(max_tokens, default_sampling_params) reads "
    "it as the server's route does, and raises for what that does not serve",
}

__getattr__ = names_from(__name__, _HOMES)
