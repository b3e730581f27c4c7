"""``ModelRegistry``: registers architectures for the plugin whose code is running."""

from __future__ import annotations

from typing import Any

from hookserve.hookspecs import declare, known_claims

__all__ = ["ModelRegistry"]

__surface__ = {
    "ModelRegistry": "live: fills the registry of models",
}


class _ModelRegistry:
    """What this process knows of architectures."""

    def get_supported_archs(self) -> set[str]:
        """The names that anybody has registered so far."""
        return {claim.name for claim in known_claims("model")}

    def register_model(self, model_arch: str, model_cls: Any) -> None:
        """Register a class, or its path ``"module:Class"``, for an architecture."""
        declare("model", model_arch, model_cls)


ModelRegistry = _ModelRegistry()
