"""The registry of connectors."""

from __future__ import annotations

from typing import Any

from hookserve.hookspecs import declare, is_claimed
from hookserve.hookspecs.targets import same_target
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

from .v1.base import KVConnectorBase_V1

__all__ = ["KVConnectorFactory"]

__surface__ = {
    "KVConnectorFactory": "live: registers connectors, which engine and workers list under their "
    "owners; none is made until the KV cache is transferred, and --kv-transfer-config is refused",
}

_KIND = "kv_connector"


class KVConnectorFactory:
    """Registers for the plugin whose code is running."""

    _registry = RegistryView(_KIND)

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Register a class by its path. The same again is nothing new.

        Raises:
            ValueError: the name is there, for another class.
        """
        path = f"{module_path}:{class_name}"
        held = cls._registry.target(name) if is_claimed(_KIND, name) else path
        if not same_target(held, path):
            raise ValueError(f"connector {name!r} is registered already, as {held}")
        declare(_KIND, name, path)

    @classmethod
    def get_connector_class_by_name(cls, connector_name: str) -> type[KVConnectorBase_V1]:
        """
        Raises:
            ValueError: nobody registered it; with the names that there are.
        """
        if connector_name not in cls._registry:
            known = ", ".join(sorted(cls._registry)) or "none"
            raise ValueError(f"no connector is called {connector_name!r}; there are: {known}")
        found: Any = cls._registry[connector_name]
        connector: type[KVConnectorBase_V1] = found
        return connector
