"""Model configurations of plugins: by the ``model_type`` of ``config.json``, and fix-ups by
architecture (hook ``hf_config``).

In front each is called with the plain values and answers with plain values, which are the ones
that cross processes. Where it is a class, the worker makes an instance of it from those for the
model. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .model_section import HfConfig
from .plugin_code import as_plugin

if TYPE_CHECKING:
    from hookserve.hookspecs import Claim, Host

_PLAIN = (type(None), bool, int, float, str)


def apply_hf_configs(values: Mapping[str, Any], host: Host) -> dict[str, Any]:
    """The values as the plugins of the ``model_type``, then of each architecture, have them.

    Raises:
        hookserve.hookspecs.PluginError: one raised, or answered with something else than plain
            values.
    """
    changed = dict(values)
    for claim in _claims(changed, host):
        target = host.registry("hf_config").resolve(claim.name)
        if changes_everything(target):
            continue
        with as_plugin(host, claim.owner, f"hf_config '{claim.name}'"):
            changed = _values_of(_made(target, changed), claim)
    return changed


def changes_everything(target: Any) -> bool:
    """Whether it is of those that change more than the model's own values (``model_fixups``)."""
    return callable(getattr(target, "verify_and_update_config", None))


def make_hf_config(values: Mapping[str, Any], host: Host) -> Any:
    """What models read: an instance of the plugin's class for the ``model_type``, if there is one.

    Raises:
        hookserve.hookspecs.PluginError: the class raised.
    """
    claim = host.registry("hf_config").get(str(values.get("model_type")))
    if claim is not None:
        target = host.registry("hf_config").resolve(claim.name)
        if isinstance(target, type):
            with as_plugin(host, claim.owner, f"hf_config '{claim.name}'"):
                return _made(target, values)
    return HfConfig(values)


def _claims(values: Mapping[str, Any], host: Host) -> list[Claim]:
    architectures = values.get("architectures")
    names = [values.get("model_type"), *(architectures if isinstance(architectures, list) else ())]
    registry = host.registry("hf_config")
    found = [registry.get(name) for name in dict.fromkeys(names) if isinstance(name, str)]
    return [claim for claim in found if claim is not None]


def _made(target: Any, values: Mapping[str, Any]) -> Any:
    """A class is constructed as the ecosystem's are; a function gets the values."""
    given = msgspec.to_builtins(values)
    if not isinstance(target, type):
        return target(given)
    return target.from_dict(given) if hasattr(target, "from_dict") else target(**given)


def _values_of(answer: Any, claim: Claim) -> dict[str, Any]:
    to_dict = getattr(answer, "to_dict", None)
    values = answer
    if callable(to_dict):
        values = to_dict()
    elif not isinstance(answer, Mapping) and hasattr(answer, "__dict__"):
        values = {key: value for key, value in vars(answer).items() if not key.startswith("_")}
    if not isinstance(values, Mapping):
        raise TypeError(
            f"the configuration is a {type(answer).__name__}; expected a mapping, or an object "
            "with to_dict()"
        )
    return {key: _plain(value, str(key)) for key, value in values.items()}


def _plain(value: Any, at: str) -> Any:
    """The value, as it can cross to another process."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, at) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{at}.{key}") for key, item in value.items()}
    raise TypeError(f"the configuration has a {type(value).__name__} under {at!r}; expected JSON")
