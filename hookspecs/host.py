"""``Host``: all plugins of one process, loaded, ordered and asked for their declarations.

That a process has one is ``current_host``'s. How hooks are called is ``calls``'s, who wins a name
``registry``'s, what is wanted ``selection``'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import order, selection
from .adapters import Adapters
from .calls import Calls
from .coarse_clock import CoarseClock
from .context import PluginContext, enter, keep_cell
from .crash_mark import CrashMark
from .declarations import EXPECTED, KINDS, NOT_CHOSEN_BY_NAME, claims_of
from .deprecated import tell_of_tiers
from .discovery import discover
from .endpoints import close_endpoints
from .errors import (
    HostError,
    PluginConflictError,
    PluginError,
    PluginSelectionError,
    RequiredPluginError,
    UnknownNameError,
    describe_error,
    did_you_mean,
    exc_info_of,
)
from .guard import Guard
from .guarding import make_guards
from .hook import HOOK_CLASSES, Collect, Hook
from .loading import load_plugin
from .manager import PluginManager
from .manifest import Manifest, manifest_of
from .markers import HookInfo
from .notify_loop import caught
from .op_names import canonical
from .owned import Owned
from .patience import watched
from .platforms import choose_platform, early_claims, is_platform, pick_platform
from .plugin import Plugin
from .plugin_config import PluginConfigError, convert_config
from .preferences import check_preferences, read_preferences
from .registrar import Registrar
from .registry import Claim, Registry, Say
from .report import OpReport, PluginReport, ProcessReport, plugin_report
from .self_registration import declared_before, forget_call
from .settings import Denied, PluginSettings
from .startup_log import StartupLog
from .transaction import Transactions
from .types import ROLES, Role

logger = logging.getLogger(__name__)

_BEHIND_FRONT: frozenset[Role] = frozenset({"engine", "worker", "inspector"})


class Host:
    """The plugins of one process. Made by ``bootstrap``.

    Attributes:
        roles: the roles of this process.
        settings: what the operator said.
        pm: pluggy's manager, for inspection.
        calls: the hooks that the host's users call.
        adapters: what makes plugins of packages for other hosts.
        describe_ops: the table of the ops of this process's model; a worker's to set.
        warnings: a line for each thing that an operator should know, for the host's user to log
            after bootstrap; later ones are logged as they come. What the front says as well is
            left to it.

    With ``only`` a host is made for the sake of these hooks: it calls no others, and loads no
    plugin that says that it has none of them. The next host of the process is given it as
    ``earlier``: what plugins did to the process under the first is told and undone by the second.
    """

    def __init__(
        self,
        roles: Iterable[Role],
        settings: PluginSettings,
        objects: Sequence[object] = (),
        *,
        load: bool = True,
        strict: bool = True,
        only: Iterable[str] | None = None,
        earlier: Host | None = None,
        crash_mark: CrashMark | None = None,
    ) -> None:
        self.roles: frozenset[Role] = frozenset(roles)
        self._only = None if only is None else frozenset(only)
        for role in self.roles:
            if role not in ROLES:
                raise HostError(f"unknown role '{role}'{did_you_mean(role, ROLES)}")
        self.settings = settings
        self.objects = tuple(objects)
        self._denied = {denied.identity: denied for denied in settings.denied}
        self.warnings: list[str] = []
        self.on_close: Callable[[Host], None] | None = None
        self.describe_ops: Callable[[], list[OpReport]] = list
        self.pm = PluginManager(self.report)
        self._strict = strict
        self._bootstrapped = False
        self._closed = False
        self._num_users = 0
        self._platform: Claim | None = None
        self._contexts: dict[Plugin, PluginContext] = {}
        # Kept when a plugin goes out: what it did until then is told.
        self._guards_of: dict[Plugin, dict[str, Guard]] = {}
        self._earlier = earlier
        self._instances: dict[type, object] = {} if earlier is None else earlier._instances
        self.adapters = Adapters()
        self._transactions = Transactions(self._say_of, self.adapters)
        self._collected: list[Claim] = []
        self._declared: list[Claim] = []
        self._log = StartupLog(
            speaks=strict and only is None,
            of_failures=logging.INFO if self.roles <= _BEHIND_FRONT else logging.WARNING,
        )
        self.plugins = discover(settings.files, objects, self.adapters.all)
        self._log.discovered(self.plugins)
        if crash_mark is not None:
            crash_mark.number(self.plugins)
        if strict and self.roles <= _BEHIND_FRONT:
            keep_cell()
        selection.apply_settings(self.plugins, settings)
        self.adapters.select(self.plugins, settings, self._say)
        self._preferences = read_preferences(settings.prefer, self.plugins)
        self._registries = self._make_registries()
        self.calls = Calls(self._make_hooks({}))
        self.plugins = self._ordered()
        self._skip_other_roles()
        self._log.selected(self.plugins)
        if load:
            self._load()
            self._log.ready(self.describe())
        self._bootstrapped = True

    # -- bootstrap ------------------------------------------------------------------------

    def _make_registries(self) -> dict[str, Registry]:
        return {
            info.kind: Registry(
                info.kind,
                chosen_by_name=info.kind not in NOT_CHOSEN_BY_NAME,
                prefer=self._preferences.get(info.kind),
                strict=self._strict,
                say=self._say_for(info),
                run_as=self._transactions.running,
            )
            for info in self.pm.specs.values()
            if info.kind is not None and self.roles & set(info.roles)
        }

    def _say_for(self, info: HookInfo) -> Say:
        return lambda line, late: self._say(line, self.roles if late else info.roles)

    def _ordered(self) -> list[Plugin]:
        wanted = [plugin for plugin in self.plugins if plugin.state != "blocked"]
        rest = [plugin for plugin in self.plugins if plugin.state == "blocked"]
        try:
            return [*order.call_order(wanted), *rest]
        except PluginConflictError as error:
            if self._strict:
                raise
            self._say(str(error), ROLES)
            return [*wanted, *rest]

    def _skip_other_roles(self) -> None:
        for plugin in self.plugins:
            if plugin.state == "found" and not plugin.facts.roles & self.roles:
                plugin.state = "other role"
                plugin.reason = f"runs in {', '.join(sorted(plugin.facts.roles))}"
                if self._take_over(plugin):
                    self._tell_warnings(plugin)
            elif plugin.state == "found" and not self._may_have_wanted(plugin):
                plugin.state = "other role"
                plugin.reason = "says that it has none of the hooks that are wanted"

    def _may_have_wanted(self, plugin: Plugin) -> bool:
        has = plugin.facts.hooks
        return self._only is None or has is None or not self._only.isdisjoint(has)

    def _load(self) -> None:
        # What was handed over explicitly comes first: if it is installed as well, it is this one
        # that counts, and whose routes are open. Then platforms: the imports of others may ask.
        for plugin in sorted(self.plugins, key=lambda p: (not p.is_explicit, not is_platform(p))):
            if plugin.state == "found":
                self._load_one(plugin)
        loaded = [plugin for plugin in self.plugins if plugin.state == "active"]
        # pluggy calls the last registered first.
        for plugin in reversed(loaded):
            self.pm.adopt(plugin)
        self.calls = Calls(self._make_hooks(self._guards(loaded)))
        self._configure()
        claims = self._collected = self._collect()
        self.calls.register_by_call()
        claims = [*claims, *self._declared]
        if "front" in self.roles:
            close_endpoints(claims, self.plugins, self.settings, self._say)
        self._fill(claims)

    def _load_one(self, plugin: Plugin) -> None:
        patience_s = self.settings.startup_hook_timeout_s
        before = self._take_over(plugin)
        self.give_registrar(plugin)
        try:
            with (
                nullcontext() if plugin.is_builtin else watched(plugin, "its import", patience_s),
                self._transactions.recording(plugin),
            ):
                load_plugin(plugin, self.pm.specs, instances=self._instances, roles=self.roles)
        except PluginError as error:
            self._put_out(plugin, error.stage, error.message, error.__cause__ or error)
            return
        for declared in declared_before(plugin.identity):
            self._declare(plugin, *declared)
        twin = next((own for own in self._contexts if own.instance is plugin.instance), None)
        if twin is not None:
            plugin.state, plugin.reason = "superseded", f"is the same object as {twin.identity}"
            self._log.superseded(plugin)
            return
        plugin.state = "active"
        if before is not None:
            plugin.load_ms = (plugin.load_ms or 0.0) + (before.load_ms or 0.0)
            plugin.warnings[:] = dict.fromkeys(plugin.warnings)
        self._log.loaded(plugin)
        self._contexts[plugin] = PluginContext(
            plugin.identity,
            self.roles,
            MappingProxyType(dict(plugin.config)),
            Path(self.settings.cache_dir or "~/.cache/hookserve").expanduser(),
        )
        self._tell_warnings(plugin)
        is_told_by_front = "front" in plugin.facts.roles and "front" not in self.roles
        if self._strict and self._only is None and not is_told_by_front:
            tell_of_tiers(plugin)

    def give_registrar(self, plugin: Plugin) -> None:
        """Take what code registers by itself under this record; a program's own may have one."""
        plugin.registrar = Registrar(
            plugin, self._declare, self.known, self._transactions.tell, self.platform
        )

    def _declare(self, plugin: Plugin, kind: str, name: str, target: Any) -> None:
        """Take a registration that the plugin's code makes by itself; in a process that has no
        use for it, it is none."""
        registry = self._registries.get(kind)
        if registry is None:
            return
        name = canonical(kind, name)
        if self._bootstrapped:
            registry.register(name, target, plugin)
        else:
            self._declared.append(Claim(kind, name, target, plugin, late=True))

    def _take_over(self, plugin: Plugin) -> Plugin | None:
        """The plugin's record in the earlier host, if it was loaded there: its module will not be
        imported again, and what that did is this host's to tell and to undo."""
        known = () if self._earlier is None else self._earlier.plugins
        for before in known:
            if before.identity == plugin.identity and before.state == "active":
                assert self._earlier is not None
                self._transactions.take_over(self._earlier._transactions, before, plugin)
                return before
        return None

    def _guards(self, loaded: Sequence[Plugin]) -> dict[str, list[Guard]]:
        guards = make_guards(
            loaded,
            self.pm.specs if self._only is None else self._only,
            roles=self.roles,
            contexts=self._contexts,
            transactions=self._transactions,
            settings=self.settings,
            process=self._process(),
        )
        for name, found in guards.items():
            for guard in found:
                self._guards_of.setdefault(guard.plugin, {})[name] = guard
        return guards

    def _make_hooks(self, guards: dict[str, list[Guard]]) -> dict[str, Hook]:
        coarse = CoarseClock(self.settings.step_hook_timeout_s)
        return {
            name: HOOK_CLASSES[info.call](
                info,
                guards.get(name, ()),
                self._refuse,
                budget_s=self.settings.budget_s(info),
                coarse=coarse if info.is_of_a_loop else None,
            )
            for name, info in self.pm.specs.items()
        }

    def _configure(self) -> None:
        """Give each plugin its section as it wants it, before any other hook is called."""
        hook = self.calls.hooks["settings_schema"]
        assert isinstance(hook, Collect)
        for plugin, schema in hook():
            if schema is None:
                continue
            try:
                self._contexts[plugin].config = convert_config(plugin, schema)
            except PluginConfigError as error:
                if self._strict:
                    raise
                self._put_out(plugin, "register", str(error), error)
            except PluginError as error:
                self._refuse(plugin, hook.info, "register", error)

    def _collect(self) -> list[Claim]:
        claims: list[Claim] = []
        for hook in self.calls.hooks.values():
            if isinstance(hook, Collect) and hook.info.kind in self._registries:
                for owned in hook():
                    claims.extend(self._claims_of(owned, hook.info))
        return claims

    def _claims_of(self, owned: Owned, info: HookInfo) -> list[Claim]:
        try:
            # Iterating over an answer, or showing it, may run the plugin's code.
            with enter(owned.owner):
                return claims_of(owned.owner, info, owned.value, self.roles)
        except caught() as error:
            self._refuse(owned.owner, info, "register", error)
            return []

    def _fill(self, claims: Sequence[Claim]) -> None:
        """Enter the claims of the plugins that are still in; one that failed in a later hook
        leaves nothing behind."""
        for claim in claims:
            if claim.plugin.state == "active":
                try:
                    is_new = self._registries[claim.kind].add(claim)
                    self._log.registered(claim, is_new=is_new)
                except PluginError as error:
                    self._put_out(claim.plugin, error.stage, error.message, error)
        for kind, registry in self._registries.items():
            registry.decide()
            self._log.decided(registry.all_claims())
            if self._only is None:
                self._check_preferences(self._preferences.get(kind, {}), registry)

    def _check_preferences(self, preferred: Mapping[str, Plugin], registry: Registry) -> None:
        try:
            check_preferences(preferred, registry)
        except PluginSelectionError as error:
            if self._strict:
                raise
            self._say(str(error), self.roles)

    # -- failures -------------------------------------------------------------------------

    def _refuse(self, plugin: Plugin, info: HookInfo, stage: str, error: BaseException) -> None:
        message = (
            error.message
            if isinstance(error, PluginError)
            else (f"hook {info.name} raised {describe_error(error)}")
        )
        named = (self.settings.platform or "").strip()
        if info.kind == "platform" and (not named or selection.matches(named, plugin)):
            why = "a platform that fails stops the start; --platform NAME chooses another"
            self._put_out(plugin, stage, message, error, why)
        else:
            self._put_out(plugin, stage, message, error)

    def _put_out(
        self,
        plugin: Plugin,
        stage: str,
        message: str,
        error: BaseException,
        stop: str | None = None,
    ) -> None:
        """Roll back everything of the plugin, or stop if it must work, or if it registered by
        itself what another one has."""
        if isinstance(error, PluginConflictError) and self._strict:
            raise error
        plugin.fail(stage, message, error)
        self._withdraw(plugin)
        if plugin.must_work:
            stop = "it is required" if plugin.required else "the host cannot do without it"
        if stop is not None and self._strict:
            raise RequiredPluginError(plugin.identity, stage, message, stop) from error
        if self._tells:  # before, ``problems`` tells it
            logger.warning("%s", plugin.problem())
        if plugin.engine_arguments:
            stay = ", ".join(plugin.engine_arguments)
            self._say(f"plugin {plugin.identity} is out; what it set for the engine stays: {stay}")
        logger.debug("plugin %s failed", plugin.identity, exc_info=exc_info_of(error))

    def _withdraw(self, plugin: Plugin) -> None:
        self.calls.withdraw(plugin)
        for registry in self._registries.values():
            registry.withdraw(plugin)
        if self.pm.has_plugin(plugin.identity):
            self.pm.unregister(name=plugin.identity)
        self._contexts.pop(plugin, None)
        self._end_threads(plugin)
        self._transactions.rollback(plugin)
        forget_call(plugin.identity)
        if self._platform is not None and self._platform.plugin is plugin:
            self._platform = None

    def _end_threads(self, plugin: Plugin) -> None:
        for guard in self._guards_of.get(plugin, {}).values():
            guard.thread.end()

    def _say(self, line: str, roles: Iterable[Role] = ("front",)) -> None:
        """Tell the operator once; a process behind the front is silent about what concerns the
        front's role too.

        Args:
            roles: the roles in which this is found out.
        """
        if "front" in roles and self.roles <= _BEHIND_FRONT:
            logger.debug("%s", line)
        elif line not in self.warnings:
            self.warnings.append(line)
            if self._tells:
                logger.warning("%s", line)

    @property
    def _tells(self) -> bool:
        """Whether it logs by itself what happens now. What a host finds that is made for the sake
        of some hooks, before there is a log, the next one tells."""
        return self._bootstrapped and self._only is None

    def _say_of(self, plugin: Plugin, line: str) -> None:
        self._say(f"plugin {plugin.identity}: {line}", plugin.facts.roles)

    def _tell_warnings(self, plugin: Plugin) -> None:
        for warning in plugin.warnings:
            self._say_of(plugin, warning)

    def deny(self, denied: Denied) -> None:
        """Withdraw a plugin that failed in another process; its modules stay imported here.

        Raises:
            RequiredPluginError: if the plugin must work.
            PluginConflictError: if this process knows no such plugin.
        """
        plugin = next((own for own in self.plugins if own.identity == denied.identity), None)
        if plugin is None:
            raise PluginConflictError(
                f"plugin {denied.identity} failed in the {denied.process} process, and there is "
                f"no such plugin in {'+'.join(sorted(self.roles))}"
            )
        self._denied[plugin.identity] = denied
        was_active = plugin.state == "active"
        plugin.reason = f"it failed in the {denied.process} process" + (
            "; its modules stay imported here" if was_active else ""
        )
        error = PluginError(denied.identity, denied.stage, denied.error)
        self._put_out(plugin, denied.stage, denied.error, error)

    # -- use ------------------------------------------------------------------------------

    def registry(self, kind: str) -> Registry:
        """The registry of one kind.

        Raises:
            UnknownNameError: if there is no such kind, or not in this process's roles.
        """
        if kind in self._registries:
            return self._registries[kind]
        if kind not in EXPECTED:
            raise UnknownNameError(f"there is no registry '{kind}'{did_you_mean(kind, KINDS)}")
        roles = next(info.roles for info in self.pm.specs.values() if info.kind == kind)
        raise UnknownNameError(
            f"the registry '{kind}' is filled in {', '.join(roles)}; this process is "
            f"{', '.join(sorted(self.roles))}"
        )

    def known(self, kind: str) -> list[Claim]:
        """What has been claimed of a kind so far, in call order; before bootstrap ends, undecided.
        Nothing, where this process has no such registry."""
        if self._bootstrapped:
            return self._registries[kind].claims() if kind in self._registries else []
        claims = [*self._collected, *self._declared]
        return [each for each in claims if each.kind == kind and each.plugin.state != "out"]

    def preferred(self, kind: str) -> Mapping[str, Plugin]:
        """Who has which name of a kind by the operator's word, if several want it."""
        return self._preferences.get(kind, {})

    def platform(self) -> Claim:
        """The platform of this process: the one that the operator named, else a third party's,
        else the built-in one.

        Raises:
            UnknownNameError: if the named one did not answer on this machine, or none did.
            PluginConflictError: if two third parties answered and none is named.
        """
        if self._platform is None:
            known, wanted = self.known("platform"), self.settings.platform
            if not self._bootstrapped:  # plugins that register by calls ask already
                return pick_platform(known or early_claims(self.plugins), wanted)
            self._platform = choose_platform(known, wanted, self._say)
        return self._platform

    def config_of(self, plugin: Plugin) -> Any:
        """The plugin's section of ``--plugin-config``, as its hooks find it in ``ctx.config``."""
        return self._contexts[plugin].config

    def enter(self, owner: Plugin | str | None) -> AbstractContextManager[None]:
        """Attribute what happens inside to a plugin, given as such or by identity."""
        if isinstance(owner, str):
            found = next((own for own in self.plugins if own.identity == owner), None)
            assert found is not None, f"no plugin is called {owner}"
            owner = found
        return enter(owner)

    def hold(self) -> bool:
        """Become one of several users of this host, each of which calls ``release`` in its end;
        whether it is the first one."""
        self._num_users += 1
        return self._num_users == 1

    def release(self) -> None:
        """Give up what ``hold`` took; the last one to do so closes the host."""
        self._num_users -= 1
        if self._num_users == 0:
            self.close()

    def close(self) -> None:
        """Run the ``shutdown`` hook and make room for another bootstrap; once."""
        if self._closed:
            return
        self._closed = True
        try:
            self.calls.shutdown(self.roles)
        finally:
            for plugin in self._guards_of:
                self._end_threads(plugin)
            if self.on_close is not None:
                self.on_close(self)

    # -- inspection -----------------------------------------------------------------------

    def problems(self) -> list[str]:
        """One line for each plugin that is blocked or out."""
        return [line for plugin in self.plugins if (line := plugin.problem()) is not None]

    def failures(self) -> list[Denied]:
        """The plugins that are out here, for the deny list of the processes to come."""
        process = self._process()
        return [
            self._denied.get(plugin.identity)
            or Denied(plugin.identity, process, plugin.stage or "run", plugin.error or "")
            for plugin in self.plugins
            if plugin.state == "out"
        ]

    def manifest(self) -> Manifest:
        """This process's plugins and registries as plain data."""
        return manifest_of(self._process(), self.roles, self.plugins, self._registries)

    def describe(self) -> list[PluginReport]:
        """A report about each plugin that was found, in call order."""
        registries = self._registries.values()
        return [
            plugin_report(plugin, self.calls.hooks, self._guards_of.get(plugin, {}), registries)
            for plugin in self.plugins
        ]

    def report(self, process: str | None = None) -> ProcessReport:
        """This process and its plugins.

        Args:
            process: its name where another process is told; by default that of its first role.
        """
        return ProcessReport(
            process=process or self._process(),
            pid=os.getpid(),
            roles=[role for role in ROLES if role in self.roles],
            plugins=self.describe(),
            ops=self.describe_ops(),
        )

    def _process(self) -> str:
        return next((role for role in ROLES if role in self.roles), "none")
