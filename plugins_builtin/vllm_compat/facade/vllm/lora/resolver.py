"""Resolvers of adapters, and their registry."""

from __future__ import annotations

from collections.abc import Set

from hookserve.engine.lora_resolver import LoRAResolver
from hookserve.hookspecs import declare
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = ["LoRAResolver", "LoRAResolverRegistry"]

__surface__ = {
    "LoRAResolver": "shape: base of resolvers; registered and listed, and asked by nobody until "
    "there are adapters",
    "LoRAResolverRegistry": "live: registers resolvers, for the plugin whose code is running",
}


class _LoRAResolverRegistry:
    """
    Attributes:
        resolvers: by name, as many as there are so far.
    """

    def __init__(self) -> None:
        self.resolvers = RegistryView("lora_resolver")

    def get_supported_resolvers(self) -> Set[str]:
        return set(self.resolvers)

    def register_resolver(self, resolver_name: str, resolver: LoRAResolver) -> None:
        """
        Args:
            resolver: an object of the class, not the class.
        """
        declare("lora_resolver", resolver_name, resolver)

    def get_resolver(self, resolver_name: str) -> LoRAResolver:
        """
        Raises:
            KeyError: nobody registered it; with the names that there are.
        """
        if resolver_name not in self.resolvers:
            known = ", ".join(sorted(self.resolvers)) or "none"
            raise KeyError(f"no LoRA resolver is called {resolver_name!r}; there are: {known}")
        found: LoRAResolver | type[LoRAResolver] = self.resolvers[resolver_name]
        return found() if isinstance(found, type) else found  # the hook declares classes


LoRAResolverRegistry = _LoRAResolverRegistry()
