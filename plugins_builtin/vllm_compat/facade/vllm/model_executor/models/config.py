"""Fix-ups of a configuration for one architecture."""

from __future__ import annotations

from hookserve.engine.model_fixups import VerifyAndUpdateConfig
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = ["MODELS_CONFIG_MAP", "VerifyAndUpdateConfig"]

__surface__ = {
    "MODELS_CONFIG_MAP": (
        "live: setting an item registers a fix-up for an architecture; the front calls it while "
        "the configuration is made"
    ),
    "VerifyAndUpdateConfig": "live: base of such fix-ups; any class with its methods will do",
}

MODELS_CONFIG_MAP = RegistryView("hf_config")
