"""``RegistryView``: a registry of the host as the mapping that packages written for vLLM expect:
from names to classes, as much as has been registered so far, by anyone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookserve.hookspecs import Claim, declare, is_claimed, known_claims
from hookserve.hookspecs.targets import import_target


class RegistryView(Mapping[str, Any]):
    """Live; setting an item registers it for the plugin whose code is running.

    Args:
        kind: of the registry.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return import_target(self._claims()[name].target)

    def target(self, name: str) -> Any:
        """What is registered, as it was given."""
        return self._claims()[name].target

    def __setitem__(self, name: str, target: Any) -> None:
        """
        Raises:
            PluginError: nobody's code is running, or the table was already read.
        """
        declare(self._kind, name, target)

    def update(self, targets: Mapping[str, Any]) -> None:
        """Set several."""
        for name, target in targets.items():
            self[name] = target

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and is_claimed(self._kind, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims())

    def __len__(self) -> int:
        return len(self._claims())

    def __repr__(self) -> str:
        return repr(dict(self))

    def _claims(self) -> dict[str, Claim]:
        """The winner of each name; the first in call order while nothing is decided."""
        found: dict[str, Claim] = {}
        for claim in known_claims(self._kind):
            held = found.get(claim.name)
            if held is None or (claim.state == "active" and held.state != "active"):
                found[claim.name] = claim
        return found
