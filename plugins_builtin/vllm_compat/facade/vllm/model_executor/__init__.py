"""Models, and what they are built of."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__all__ = ["BasevLLMParameter", "PackedvLLMParameter", "set_random_seed"]

__surface__ = {
    "BasevLLMParameter": "live: layers load it by its own methods",
    "PackedvLLMParameter": "live: layers load it by its own methods",
    "set_random_seed": "live: seeds this process; an older path of vllm.utils.torch_utils",
}

__getattr__ = names_from(
    __name__,
    {
        "BasevLLMParameter": ".parameter",
        "PackedvLLMParameter": ".parameter",
        "set_random_seed": "..utils.torch_utils",
    },
)
