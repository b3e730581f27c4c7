"""Fix-ups of a configuration for one architecture."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "MODELS_CONFIG_MAP": (
        "refused: the configuration is complete before models are known; change it in the "
        "hook engine_config or in a platform's check_and_update_config"
    ),
    "VerifyAndUpdateConfig": (
        "refused: the configuration is complete before models are known; change it in the "
        "hook engine_config or in a platform's check_and_update_config"
    ),
}
