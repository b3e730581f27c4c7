"""The routes of all endpoints in one order without overlap, each behind its scopes and its guard.

What was built of the endpoints is ``EndpointSet``'s, which routes are the same ``route_paths``'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.routing import BaseRoute, Host, Match
from starlette.types import Scope

from hookserve.hookspecs import Claim, PluginConflictError

from .attaching import Attachment
from .owned_route import NOTHING_AROUND, OwnedRoute, Part
from .route_access import CoreRoute, needs_of_plugin
from .route_paths import WEBSOCKET, RouteKey, hides, keys_of

Tell = Callable[[str], None]
"""Takes one line for the operator."""

_PARAMETER = re.compile(r"{\w*(:\w+)?}")


@dataclass(frozen=True)
class Served:
    """One endpoint that was built.

    Attributes:
        attachment: what else it added to the application, where it added its routes itself.
    """

    claim: Claim
    instance: Any
    routes: tuple[BaseRoute, ...]
    attachment: Attachment | None = None

    @property
    def is_builtin(self) -> bool:
        return self.claim.plugin.is_builtin

    def parts_of(self, route: BaseRoute) -> Sequence[BaseRoute]:
        """The plain routes that one of its routes stands for."""
        if self.attachment is None:
            return (route,)
        parts: Sequence[BaseRoute] = self.instance.parts_of(route)
        return parts

    def claimed(self) -> list[RouteKey]:
        parts = (part for route in self.routes for part in self.parts_of(route))
        return [key for part in parts for key in keys_of(part)]


def core_routes(served: Iterable[Served]) -> list[tuple[BaseRoute, str]]:
    """The built-in routes, each with its owner."""
    return [
        (route, each.claim.owner) for each in served if each.is_builtin for route in each.routes
    ]


def arrange(served: Sequence[Served], tell: Tell) -> list[BaseRoute]:
    """Routes that plugins attached, built-in routes, then what plugins gave.

    Args:
        tell: what a plugin's route overrides, hides, or seems to.

    Raises:
        PluginConflictError: two plugins claim the same path and method.
    """
    core = core_routes(served)
    attached: list[OwnedRoute] = []
    given: list[OwnedRoute] = []
    taken: dict[RouteKey, tuple[RouteKey, str]] = {}
    for each in served:
        if not each.is_builtin:
            for key in each.claimed():
                _take(taken, key, each.claim.owner)
            mine = given if each.attachment is None else attached
            mine += [_own(each, route, core) for route in each.routes]
    first, last = _keys(attached), _keys(given)
    kept = [each for each in core if not _is_replaced(*each, first, last, tell)]
    before: list[tuple[BaseRoute, str]] = []
    for owned in attached:
        _come_after(owned, before, tell)
    before += kept
    for owned in given:
        _come_after(owned, before, tell)
    return [*attached, *(CoreRoute(route) for route, _ in kept), *given]


def _own(served: Served, route: BaseRoute, core: Sequence[tuple[BaseRoute, str]]) -> OwnedRoute:
    parts = []
    for part in served.parts_of(route):
        keys = set(keys_of(part))
        replaced = [other for other, _ in core if not keys.isdisjoint(keys_of(other))]
        parts.append(Part(part, needs_of_plugin(part, replaced)))
    attachment = served.attachment
    around = NOTHING_AROUND if attachment is None else attachment.around
    return OwnedRoute(route, served.claim, parts, around)


def _take(taken: dict[RouteKey, tuple[RouteKey, str]], key: RouteKey, owner: str) -> None:
    """Two spellings that differ in slashes alone are one path to whoever types them."""
    other, other_owner = taken.setdefault(key.folded, (key, owner))
    if other_owner == owner:
        return
    spelled = "" if other == key else f", as {other.path} and {key.path}"
    raise PluginConflictError(
        f"{key.folded} is claimed by {other_owner} and by {owner}{spelled}; open one of them only "
        "with --enable-endpoints, or leave one out with --disable-plugins"
    )


def _keys(routes: Iterable[OwnedRoute]) -> dict[RouteKey, str]:
    """What plugins' routes answer, each with its owner."""
    return {
        key: owned.claim.owner
        for owned in routes
        for part in owned.parts
        for key in keys_of(part.route)
    }


def _is_replaced(
    route: BaseRoute, owner: str, first: dict[RouteKey, str], last: dict[RouteKey, str], tell: Tell
) -> bool:
    """Whether nothing is left of a built-in route, which a plugin may replace. What was attached
    comes first and leaves it the other methods; what was given comes behind, and takes them all."""
    keys = keys_of(route)
    for key in sorted(keys):
        by = sorted({found[key] for found in (first, last) if key in found})
        if by:
            tell(f"{key}: {', '.join(by)} overrides the built-in route of {owner}")
    return bool(keys) and (first.keys() >= set(keys) or not last.keys().isdisjoint(keys))


def _come_after(mine: OwnedRoute, before: list[tuple[BaseRoute, str]], tell: Tell) -> None:
    for part in mine.parts:
        _tell_if_hidden(part.route, mine.claim.owner, before, tell)
    before += [(part.route, mine.claim.owner) for part in mine.parts]


def _tell_if_hidden(
    mine: BaseRoute, my_owner: str, before: Iterable[tuple[BaseRoute, str]], tell: Tell
) -> None:
    """Tell a plugin's route that is never reached, for one that comes before it, and one that
    looks like a built-in route and is not it."""
    for key in keys_of(mine):
        for route, owner in before:
            if hides(route, key):
                path = getattr(route, "path", "") or "/"
                tell(f"{key} of {my_owner} is never reached: {path} of {owner} comes first")
                break
            if key not in (others := keys_of(route)) and key.folded in others:
                tell(
                    f"{key} of {my_owner} does not replace {key.folded} of {owner}: their paths "
                    "differ in slashes, and each answers to its own spelling"
                )


# -- what was attached comes before the core ----------------------------------------------------


def catch_all(served: Served, core: Sequence[tuple[BaseRoute, str]]) -> str | None:
    """Which built-in route one of an endpoint's would answer without being that very path and
    method; ``None``: none of them does."""
    for route in served.routes:
        parts = served.parts_of(route)
        own = {key for part in parts for key in keys_of(part)}
        # What goes by the host that a request names answers all of its paths.
        is_open = any(isinstance(part, Host) for part in parts)
        for other, owner in core:
            for key in keys_of(other):
                answers = is_open or route.matches(_scope_of(other, key))[0] is Match.FULL
                if answers and key not in own:
                    shown = getattr(route, "path", None) or ", ".join(map(str, sorted(own)))
                    return (
                        f"its route {shown or '/'} would answer {key} of {owner} too; expected "
                        "that very path, which replaces the built-in route, or paths that no "
                        "built-in route has"
                    )
    return None


def _scope_of(route: BaseRoute, key: RouteKey) -> Scope:
    """A request that a route answers: any word is a value of the built-in routes' parameters."""
    path = _PARAMETER.sub("x", getattr(route, "path", "/"))
    kind = "websocket" if key.method == WEBSOCKET else "http"
    return {"type": kind, "path": path, "root_path": "", "method": key.method, "headers": []}
