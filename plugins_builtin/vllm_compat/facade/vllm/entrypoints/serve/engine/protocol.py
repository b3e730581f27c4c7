"""What answers of every route are made of. They are pydantic models: they need
``hookserve[vllm-compat]``.
"""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

_OWN = "shape: for the answers of a plugin's own routes; the server writes its own by itself"
__surface__ = {
    "ErrorInfo": _OWN,
    "ErrorResponse": f"{_OWN}, in the same form",
    "ModelCard": _OWN,
    "ModelList": _OWN,
    "OpenAIBaseModel": "shape: a pydantic model that takes further fields, for bodies and answers "
    "of a plugin's own routes; needs hookserve[vllm-compat]",
    "PromptTokenUsageInfo": _OWN,
    "UsageInfo": _OWN,
}
_HOMES = dict.fromkeys(__surface__, "hookserve.plugins_builtin.vllm_compat.openai_models")

__all__ = [*_HOMES]

__getattr__ = names_from(__name__, _HOMES)
