"""``Credentials``: who sends a request, by the server's keys, an authenticator, or a plugin's hook.

In this order, until one knows. What is done with a request of which nobody knows is
``authentication``'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hookserve.hookspecs import Host, PluginError, Principal, RequestHead, RequiredPluginError
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.deadline import OutOfTimeError, within
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.plugin import Plugin
from hookserve.hookspecs.plugin_thread import build_within
from hookserve.hookspecs.request_calls import check_principal

from .secret import Secret, digest_of
from .settings import ServerSettings

_SCHEME = "bearer"
_CHOSEN = "--authenticator names it"


class Credentials:
    """Built once, before the engine starts.

    Attributes:
        is_closed: whether anybody has to say who they are. It is decided when the plugins are
            loaded: one that goes out later opens nothing.
    """

    def __init__(
        self, host: Host, keys: Sequence[tuple[Secret, Principal]], chosen: Chosen | None
    ) -> None:
        self._host = host
        self._keys = tuple(keys)
        self._chosen = chosen
        self._hook_owners = [each.identity for each in host.plugins if _has_the_hook(each)]
        self.is_closed = bool(keys or chosen or self._hook_owners)

    @classmethod
    def build(
        cls, host: Host, settings: ServerSettings, additional_config: Mapping[str, Any]
    ) -> Credentials:
        """Take the keys, and build the authenticator that the settings name.

        Args:
            additional_config: for an authenticator that belongs to no plugin.

        Raises:
            UnknownNameError: there is no authenticator of this name.
            PluginError: it cannot be imported.
            RequiredPluginError: it cannot be built, or is none.
        """
        keys = [
            *_named("api-key", settings.api_key, Principal("").scopes),
            # Behind the others, so that a key that is both counts as this.
            *_named("admin-key", settings.admin_key, frozenset({"inference", "admin"})),
        ]
        chosen = None
        if settings.authenticator is not None:
            chosen = Chosen.build(host, settings.authenticator, additional_config)
        return cls(host, keys, chosen)

    @property
    def takes_keys(self) -> bool:
        """Whether the server has keys of its own; else what is asked for is a plugin's matter."""
        return bool(self._keys)

    def summary(self) -> str:
        """One line for the log."""
        if not self.is_closed:
            return "every route is open: there is no key, no authenticator and no plugin that asks"
        parts = [f"keys: {len(self._keys)}"] if self._keys else []
        parts += [f"authenticator: {self._chosen.name}"] if self._chosen else []
        parts += [f"plugins: {', '.join(self._hook_owners)}"] if self._hook_owners else []
        return f"closed but for the probes; {'; '.join(parts)}"

    def check(self) -> None:
        """Raises:
        RequiredPluginError: the plugin of the chosen authenticator is out by now.
        """
        plugin = None if self._chosen is None else self._chosen.plugin
        if plugin is not None and plugin.state != "active":
            raise RequiredPluginError(
                plugin.identity, plugin.stage or "run", plugin.error or plugin.reason, _CHOSEN
            )

    async def identify(self, head: RequestHead) -> Principal | None:
        """Who sends the request; ``None`` if nobody knows.

        Raises:
            PluginError: one that was asked failed, so that it is not known what it would have said.
        """
        token = bearer_token(head)
        found = None if token is None else self._holder(token)
        # Other hooks are to see the headers as they came.
        head = msgspec.structs.replace(head, headers=dict(head.headers))
        if found is None and self._chosen is not None:
            found = await self._chosen.ask(head)
        if found is None:
            owned = await self._host.calls.authenticate(head)
            found = None if owned is None else owned.value
        return found

    def _holder(self, token: str) -> Principal | None:
        """Whose key this is. All keys are compared, so that the time tells nothing."""
        digest, found = digest_of(token), None
        for key, principal in self._keys:
            if key.matches(digest):
                found = principal
        return found


@dataclass(frozen=True)
class Chosen:
    """The authenticator that ``--authenticator`` names.

    Args:
        name: as the operator gave it.
        plugin: whose it is; ``None`` for a class path.
    """

    name: str
    plugin: Plugin | None
    instance: Any
    budget_s: float

    @classmethod
    def build(cls, host: Host, name: str, additional_config: Mapping[str, Any]) -> Chosen:
        registry, settings = host.registry("authenticator"), host.settings
        target, claim = registry.resolve(name), registry.get(name)
        plugin = None if claim is None else claim.plugin
        owner = name if plugin is None else plugin.identity
        config = additional_config if plugin is None else host.config_of(plugin)

        def make() -> Any:
            with enter(plugin):
                instance = target(config)
                if not inspect.iscoroutinefunction(getattr(instance, "authenticate", None)):
                    raise TypeError("expected a class with 'async def authenticate(self, head)'")
                return instance

        what = f"authenticator {name}"
        try:
            instance = build_within(settings.startup_hook_timeout_s, owner, what, make)
        except PluginError as error:
            raise RequiredPluginError(owner, error.stage, error.message, _CHOSEN) from error
        except caught() as error:
            message = f"{what}: {describe_error(error)}"
            raise RequiredPluginError(owner, "run", message, _CHOSEN) from error
        return cls(name, plugin, instance, settings.front_hook_timeout_s)

    async def ask(self, head: RequestHead) -> Principal | None:
        """Raises:
        PluginError: it failed, took too long, or gave what is no principal.
        """
        try:
            with enter(self.plugin):
                work = self.instance.authenticate(head)
                answer = await within(self.budget_s, work, f"authenticator {self.name}")
            if answer is not None:
                check_principal(answer)
        except caught() as error:
            owner = self.name if self.plugin is None else self.plugin.identity
            is_late = isinstance(error, OutOfTimeError)
            message = str(error) if is_late else describe_error(error)
            raise PluginError(owner, "run", f"authenticator {self.name}: {message}") from error
        principal: Principal | None = answer
        return principal


def bearer_token(head: RequestHead) -> str | None:
    """The token of ``Authorization: Bearer TOKEN`` (RFC 6750, 2.1); the scheme in any case."""
    scheme, _, token = head.headers.get("authorization", "").partition(" ")
    return token.strip(" ") or None if scheme.lower() == _SCHEME else None


def _named(kind: str, keys: Sequence[Secret], scopes: Any) -> list[tuple[Secret, Principal]]:
    """Each key's holder is called by the place of the key, which is no secret."""
    return [(key, Principal(f"{kind}-{at}", scopes)) for at, key in enumerate(keys, 1)]


def _has_the_hook(plugin: Plugin) -> bool:
    """Whether the plugin implements ``authenticate``, also if it is out by now: that it fails must
    not open what it was installed to close."""
    if plugin.state not in ("active", "out"):
        return False
    has = [each.info.name for each in plugin.implementations]
    return "authenticate" in (*has, *(plugin.facts.hooks or ()))
