"""From the architectures that a checkpoint names to the class that implements one of them.

The front only asks whether somebody registered one (no import, no torch); the worker imports it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.errors import PluginError

from .errors import UnknownArchitectureError

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.registry import Claim


MAX_LISTED = 60
"""Architectures that the message about an unknown one lists."""


def find_model(architectures: Sequence[str], host: Host) -> Claim | None:
    """The claim on the first of the architectures that is registered. Imports nothing."""
    registry = host.registry("model")
    return next(filter(None, map(registry.get, architectures)), None)


def check_architecture(architectures: Sequence[str], host: Host) -> str:
    """The first of the architectures that is registered. Imports nothing.

    Raises:
        UnknownArchitectureError: if none is; with the nearest names, and every plugin that was
            blocked or failed.
    """
    claim = find_model(architectures, host)
    if claim is not None:
        return claim.name
    raise UnknownArchitectureError(_unknown(architectures, host))


def _unknown(architectures: Sequence[str], host: Host) -> str:
    registry = host.registry("model")
    wanted = ", ".join(repr(name) for name in architectures) or "none"
    near = dict.fromkeys(found for name in architectures for found in registry.nearest(name))
    names = sorted(registry.names())
    shown = ", ".join(names[:MAX_LISTED]) or "none"
    shown += f" and {len(names) - MAX_LISTED} more" if names[MAX_LISTED:] else ""
    nearest = f"nearest: {', '.join(near)}; " if near else ""
    message = (
        f"the checkpoint's architectures ({wanted}) are not supported for now: no plugin registers "
        f"one of them; {nearest}registered: {shown}"
    )
    problems = host.problems()
    if problems:
        message += "; plugins that are not active: " + "; ".join(problems)
    return message


def resolve_architecture(architectures: Sequence[str], host: Host) -> tuple[str, type[Any]]:
    """``(name, class)`` for the first registered architecture; imports its module.

    Raises:
        UnknownArchitectureError: as ``check_architecture``.
        PluginError: if the class cannot be imported, does not keep the model contract, or is not
            served here.
    """
    name, model_class = import_architecture(architectures, host)
    check_is_served(name, host, unserved_need(model_class))
    return name, model_class


def import_architecture(architectures: Sequence[str], host: Host) -> tuple[str, type[Any]]:
    """As ``resolve_architecture``, also of a model that is not served here."""
    name = check_architecture(architectures, host)
    registry = host.registry("model")
    model_class = registry.resolve(name)
    claim = registry.get(name)
    assert claim is not None
    fault = _model_fault(model_class)
    if fault is not None:
        raise PluginError(claim.owner, "register", _say(name, claim, fault))
    return name, model_class


def check_is_served(name: str, host: Host, need: str | None) -> None:
    """
    Args:
        need: what ``unserved_need`` says of the class.

    Raises:
        PluginError: there is something.
    """
    claim = host.registry("model").get(name)
    assert claim is not None
    if need is not None:
        raise PluginError(claim.owner, "register", _say(name, claim, need))


def contract_fault(model_class: Any) -> str | None:
    """What keeps the class from being a model that is served here, or ``None``."""
    return _model_fault(model_class) or unserved_need(model_class)


def _model_fault(model_class: Any) -> str | None:
    """What keeps the class from being a model."""
    if not is_module_class(model_class):
        return "is not a subclass of torch.nn.Module"
    missing = _missing_members(model_class)
    if missing:
        return f"lacks {', '.join(missing)}"
    return constructor_fault(model_class) or _forward_fault(model_class)


def is_module_class(model_class: Any) -> bool:
    """Whether it is a subclass of ``torch.nn.Module``; where torch is not imported nothing is."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(model_class, type)
        and issubclass(model_class, torch.nn.Module)
    )


def _missing_members(model_class: type[Any]) -> list[str]:
    """What the contract asks for and the class does not have; ``forward`` with its arguments."""
    forward = model_class.forward
    is_own = forward is not sys.modules["torch"].nn.Module.forward
    has_forward = (
        callable(forward) and is_own and all(accepts(forward, name) for name in _FORWARD[:2])
    )
    missing = [] if has_forward else ["forward(input_ids, positions)"]
    methods = ["embed_input_ids", "compute_logits", "load_weights"]
    if getattr(model_class, "is_pooling_model", False):
        methods.remove("compute_logits")
    missing += [name for name in methods if not callable(getattr(model_class, name, None))]
    return missing


def unserved_need(model_class: type[Any]) -> str | None:
    """What the class, which is a model, needs of an engine and this one does not have."""
    if not callable(getattr(model_class, "compute_logits", None)):
        return "lacks compute_logits; it is a pooling model, and text is generated here"
    for flag in ("has_inner_state", "is_hybrid"):
        if getattr(model_class, flag, False):
            return f"states {flag}, and only keys and values of attention are kept between steps"
    kind = getattr(model_class, "attn_type", "decoder")
    if kind != "decoder":
        return f"states attn_type {kind!r}, and attention here is causal ('decoder')"
    return None


NEW_STYLE = ("vllm_config", "prefix")
OLD_STYLE = (
    "config",
    "cache_config",
    "quant_config",
    "lora_config",
    "scheduler_config",
    "prefix",
)
"""What a constructor may ask for: the whole configuration, or, as models were once written, parts
of it."""
_FORWARD = ("input_ids", "positions", "intermediate_tensors", "inputs_embeds")


def is_old_style(model_class: type[Any]) -> bool:
    """Whether the constructor asks for parts of the configuration. One that takes any keyword and
    names none of them is of the new style: it hands on what it is given."""
    names, _, _ = _parameters(model_class.__init__)
    return "vllm_config" not in names and not set(OLD_STYLE[:-1]).isdisjoint(names)


def constructor_arguments(model_class: type[Any]) -> tuple[str, ...]:
    """Those of ``NEW_STYLE`` or ``OLD_STYLE`` that the constructor takes."""
    style = OLD_STYLE if is_old_style(model_class) else NEW_STYLE
    names, _, takes_any = _parameters(model_class.__init__)
    return tuple(name for name in style if name in names or takes_any)


def constructor_fault(model_class: type[Any]) -> str | None:
    """What keeps the class from being constructed, or ``None``."""
    given = constructor_arguments(model_class)
    if not given or given == ("prefix",):
        return "is not constructed as __init__(*, vllm_config, prefix='')"
    _, required, _ = _parameters(model_class.__init__)
    unknown = ", ".join(repr(name) for name in required if name not in given)
    return f"has a constructor that needs {unknown}, which nobody gives" if unknown else None


def _forward_fault(model_class: type[Any]) -> str | None:
    _, required, _ = _parameters(model_class.forward)
    unknown = ", ".join(repr(name) for name in required if name not in _FORWARD)
    return f"has a forward that needs {unknown}, which nobody gives" if unknown else None


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a method takes an argument of that name."""
    names, _, takes_any = _parameters(function)
    return takes_any or name in names


def _parameters(function: Any) -> tuple[list[str], list[str], bool]:
    """Names of the parameters but the first (``self``), those without a default, and whether any
    keyword is taken."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [p for p in parameters if p.kind not in several]
    required = [p.name for p in named if p.default is inspect.Parameter.empty]
    return [p.name for p in named], required, takes_any


def _say(name: str, claim: Claim, fault: str) -> str:
    return (
        f"model {name!r}: {claim.target_text()} {fault}; the model contract is described in "
        "docs/models.md"
    )
