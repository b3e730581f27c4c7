"""An ``OpSet`` without a host: of the built-in providers, and of overrides and providers of one or
several plugins that are nothing but an identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hookserve.hookspecs import Claim, OpOverride, OpProvider, Plugin, Registry
from hookserve.hookspecs.op_names import canonical
from hookserve.ops.dispatch import OpSet
from hookserve.plugins_builtin.op_providers import register_op_provider


def make_plugin(identity: str) -> Plugin:
    group = identity.split(":")[1]
    return Plugin(identity, identity, group, lambda: None)


BUILTIN = make_plugin("hookserve:builtin:op_providers")


def make_op_set(given: Mapping[str, Iterable[Any]] | None = None, **options: Any) -> OpSet:
    """
    Args:
        given: identity of a plugin to what it declares: ``OpOverride`` and ``OpProvider``.
        options: of the ``OpSet``.
    """
    registries = {kind: Registry(kind) for kind in ("oot_op", "op_provider")}
    for identity, declarations in (given or {}).items():
        plugin = make_plugin(identity)
        for each in declarations:
            _add(registries, plugin, each)
    for provider in register_op_provider():
        _add(registries, BUILTIN, provider)
    for registry in registries.values():
        registry.decide()
    return OpSet(registries["oot_op"], registries["op_provider"], **options)


def _add(registries: Mapping[str, Registry], plugin: Plugin, each: Any) -> None:
    if isinstance(each, OpOverride):
        kind, name = "oot_op", each.op
    else:
        assert isinstance(each, OpProvider)
        kind, name = "op_provider", f"{each.op}.{each.name}"
    claim = Claim(kind, canonical(kind, name), each.target, plugin, each)
    registries[kind].add(claim)
