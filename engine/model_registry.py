"""From the architectures that a checkpoint names to the class that implements one of them.

The front only asks whether somebody registered one (no import, no torch); the worker imports it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.errors import PluginError

from .errors import UnknownArchitectureError

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.registry import Claim


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
    registry = host.registry("model")
    wanted = ", ".join(repr(name) for name in architectures) or "none"
    near = [found for name in architectures for found in registry.nearest(name)]
    known = ", ".join(dict.fromkeys(near)) or ", ".join(sorted(registry.names())) or "none"
    message = (
        f"no plugin registers the checkpoint's architecture ({wanted}); "
        f"{'nearest' if near else 'registered'}: {known}"
    )
    problems = host.problems()
    if problems:
        message += "; plugins that are not active: " + "; ".join(problems)
    raise UnknownArchitectureError(message)


def resolve_architecture(architectures: Sequence[str], host: Host) -> tuple[str, type[Any]]:
    """``(name, class)`` for the first registered architecture; imports its module.

    Raises:
        UnknownArchitectureError: as ``check_architecture``.
        PluginError: if the class cannot be imported, or does not keep the model contract.
    """
    name = check_architecture(architectures, host)
    registry = host.registry("model")
    model_class = registry.resolve(name)
    claim = registry.get(name)
    assert claim is not None
    fault = contract_fault(model_class)
    if fault is not None:
        raise PluginError(claim.owner, "register", _say(name, claim, fault))
    return name, model_class


def contract_fault(model_class: Any) -> str | None:
    """What keeps the class from being a model, or ``None``."""
    from torch import nn

    if not isinstance(model_class, type) or not issubclass(model_class, nn.Module):
        return "is not a subclass of torch.nn.Module"
    for method in ("embed_input_ids", "forward", "compute_logits", "load_weights"):
        if method == "forward" and model_class.forward is nn.Module.forward:
            return "lacks the method 'forward'"
        if not callable(getattr(model_class, method, None)):
            return f"lacks the method {method!r}"
    if not _accepts(model_class.__init__, ("vllm_config", "prefix")):
        return "is not constructed as __init__(*, vllm_config, prefix='')"
    if not _accepts(model_class.forward, ("input_ids", "positions")):
        return "has a forward that does not accept input_ids and positions"
    return None


def _accepts(function: Any, names: Sequence[str]) -> bool:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return takes_any or all(name in parameters for name in names)


def _say(name: str, claim: Claim, fault: str) -> str:
    return (
        f"model {name!r}: {claim.target_text()} {fault}; the model contract is described in "
        "docs/models.md"
    )
