"""Classes that plugins replace, by name."""

from __future__ import annotations

from typing import Any

from hookserve.ops.custom_op import CustomOp, PluggableLayer, Replaceable
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = ["CustomOp", "PluggableLayer", "maybe_get_oot_by_class", "op_registry", "op_registry_oot"]

__surface__ = {
    "CustomOp": "live: base of the ops that a model builds; register_oot replaces one",
    "PluggableLayer": "live: base of the layers that a model builds; register_oot replaces one",
    "maybe_get_oot_by_class": "live: answers which class is built in the place of another",
    "op_registry": "live: the classes that are registered, by registered name",
    "op_registry_oot": (
        "live: the replacements that are registered so far, by the name of the class that "
        "each replaces"
    ),
}


op_registry = Replaceable.op_registry
op_registry_oot = RegistryView("oot_op")


def maybe_get_oot_by_class(class_type: type[Any]) -> type[Any]:
    """The class that plugins have registered in the place of this one, else this one."""
    found: type[Any] = op_registry_oot.get(class_type.__name__, class_type)
    return found
