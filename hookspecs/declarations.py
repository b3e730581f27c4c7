"""From what a registration hook returned to claims: shapes, names and targets are checked here.

Who wins a name is ``registry``'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import targets
from .errors import PluginError
from .markers import HookInfo
from .op_names import canonical
from .plugin import Plugin
from .registry import Claim
from .types import Command, Endpoint, ModelEntry, Named, OpOverride, OpProvider, Role

EXPECTED: Mapping[str, tuple[type, ...]] = {
    "model": (ModelEntry,),
    "oot_op": (OpOverride,),
    "op_provider": (OpProvider,),
    "platform": (str,),
    "stat_logger": (type, str),
    "endpoint": (Endpoint,),
    "io_processor": (Named,),
    "model_source": (Named,),
    "model_loader": (Named,),
    "executor": (Named,),
    "scheduler": (Named,),
    "worker_extension": (Named,),
    "attention_backend": (Named,),
    "quantization": (Named,),
    "hf_config": (Named,),
    "logits_processor": (Named,),
    "tool_parser": (Named,),
    "reasoning_parser": (Named,),
    "grammar_backend": (Named,),
    "lora_resolver": (Named,),
    "kv_connector": (Named,),
    "authenticator": (Named,),
    "middleware": (type, str, Callable),  # type: ignore[dict-item]
    "cli_command": (Command,),
}
"""What the hook of each kind returns."""

KINDS = tuple(EXPECTED)
_VERB = re.compile(r"[a-z][a-z0-9-]*")

SINGLE = frozenset({"platform"})
"""Kinds of which a plugin declares at most one."""

NOT_CHOSEN_BY_NAME = frozenset({"stat_logger", "middleware", "logits_processor"})
"""Kinds of which every declaration is used; two owners of one name are no conflict."""


def claims_of(
    plugin: Plugin, info: HookInfo, value: Any, process_roles: frozenset[Role]
) -> list[Claim]:
    """The claims in a registration hook's answer.

    Raises:
        PluginError: if it is of another kind than the hook returns.
    """
    assert info.kind is not None
    claims = []
    for declaration in _as_list(plugin, info, value):
        if not isinstance(declaration, EXPECTED[info.kind]):
            raise _wrong(plugin, info, declaration)
        name, target = _name_and_target(plugin, info.kind, declaration)
        if not isinstance(name, str) or not name.strip():
            raise PluginError(
                plugin.identity, "register", f"{info.name} declared {name!r}, expected a name"
            )
        if info.kind == "cli_command" and _VERB.fullmatch(name) is None:
            raise PluginError(
                plugin.identity,
                "register",
                f"{info.name} declared the verb {name!r}; expected one word of small letters, "
                "digits and hyphens",
            )
        _check_target(plugin, info, name, target, process_roles)
        claims.append(Claim(info.kind, name, target, plugin, declaration))
    return claims


def _as_list(plugin: Plugin, info: HookInfo, value: Any) -> list[Any]:
    assert info.kind is not None
    if value is None:
        return []
    if isinstance(value, EXPECTED[info.kind]):
        return [value]
    if info.kind in SINGLE or not isinstance(value, Iterable) or isinstance(value, str | Mapping):
        raise _wrong(plugin, info, value)
    return list(value)


def _wrong(plugin: Plugin, info: HookInfo, value: Any) -> PluginError:
    assert info.kind is not None
    expected = " or ".join(kind.__name__ for kind in EXPECTED[info.kind])
    several = "" if info.kind in SINGLE else ", several,"
    return PluginError(
        plugin.identity,
        "register",
        f"{info.name} returned {repr(value)[:120]}; expected {expected}{several} or None",
    )


def _name_and_target(plugin: Plugin, kind: str, declaration: Any) -> tuple[Any, Any]:
    if kind == "platform":
        return plugin.name, declaration
    if kind == "op_provider":
        return canonical(kind, f"{declaration.op}.{declaration.name}"), declaration.target
    if kind in NOT_CHOSEN_BY_NAME and not isinstance(declaration, Named):
        return targets.target_text(declaration).replace(":", "."), declaration
    return declaration.name, declaration.target


def _check_target(
    plugin: Plugin, info: HookInfo, name: str, target: Any, process_roles: frozenset[Role]
) -> None:
    if isinstance(target, str):
        fault = targets.check_path(target)
    elif not callable(target):
        fault = f"target {target!r} is neither 'module:attribute' nor something that can be called"
    elif not set(info.roles) - {"inspector", "cli"} <= process_roles:
        fault = (
            f"target {targets.target_text(target)} is an object, and {info.name} runs in several "
            "processes; give it as the text 'module:attribute'"
        )
    else:
        return
    if fault is not None:
        raise PluginError(plugin.identity, "register", f"{info.kind} '{name}': {fault}")
