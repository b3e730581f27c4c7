"""Adapters: how packages that were written for another host become plugins of this one.

``plugins_builtin/hookserve.toml`` names each in a table ``[adapter.NAME]``: the module, and the
prefix of the entry-point groups that it is asked about. The module is imported only where such an
entry is installed, or where the operator names a class path or a file, whose code may need what
the adapter prepares. What an adapter does is its own business; here stands what it offers.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import facts as toml
from .errors import explain_error
from .plugin import FILE_GROUP, Plugin
from .targets import import_target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .settings import PluginSettings

BUILTIN_PACKAGE = "hookserve.plugins_builtin"


class AdapterModule(Protocol):
    """What the module of an adapter offers."""

    HOST_PACKAGES: Sequence[str]
    """Top-level packages that it serves: what a plugin replaces in them is a patch of the host."""

    def make_plugins(self, entries: Sequence[EntryPoint]) -> list[Plugin]:
        """A plugin for each entry point, imported by nobody so far; one that is not to be loaded
        comes blocked, superseded or with a fault."""

    def select(
        self, plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]
    ) -> None:
        """Block what the operator does not want of ``make_plugins``' plugins, and say what they
        should know of their choice."""

    def prepare(self) -> None:
        """Make this process ready for code of the other host's packages; repeating it is free."""

    def explain(self, error: BaseException) -> str | None:
        """What an import error means that is about the other host's modules."""


class Adapter:
    """One adapter of this installation; its module is imported at its first use.

    Args:
        name: of its table.
        module: ``AdapterModule``'s name.
        prefix: of the entry-point groups that it is asked about.
    """

    def __init__(self, name: str, module: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix
        self._path = module
        self._module: Any = None

    @property
    def is_in_use(self) -> bool:
        return self._module is not None

    @property
    def module(self) -> AdapterModule:
        if self._module is None:
            self._module = importlib.import_module(self._path)
        found: AdapterModule = self._module
        return found


class Adapters:
    """Those of one host."""

    def __init__(self) -> None:
        self.all = find_adapters()

    def select(
        self, plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]
    ) -> None:
        """Have the adapters' plugins chosen, and this process made ready for those that stay, and
        for files that the operator names, which may need what any of them prepares."""
        self.choose(plugins, settings, say)
        wanted = [each for each in plugins if each.state == "found"]
        for plugin in wanted:
            plugin.explain = self.explain
        if any(plugin.group == FILE_GROUP for plugin in wanted):
            self.prepare()
        for adapter in self.all:
            if any(plugin.adapter == adapter.name for plugin in wanted):
                adapter.module.prepare()

    def choose(
        self, plugins: Sequence[Plugin], settings: PluginSettings, say: Callable[[str], None]
    ) -> None:
        """Have the adapters' plugins chosen; a list that finds none is answered too."""
        for adapter in self.all:
            if adapter.is_in_use or adapter.name in settings.adapter_lists:
                adapter.module.select(plugins, settings, say)

    def prepare(self) -> None:
        """Make this process ready for code that may have been written for any of the other
        hosts."""
        for adapter in self.all:
            adapter.module.prepare()

    @contextmanager
    def importing(self, plugin: Plugin | None) -> Iterator[None]:
        """Surrounds the import of a target: one that the operator named is no plugin's, and may
        have been written for any host."""
        if plugin is not None:
            yield
            return
        self.prepare()
        try:
            yield
        except Exception as error:
            explain_error(error, self.explain)
            raise

    def import_path(self, path: str) -> Any:
        """The object at a class path that an operator, or a platform, named; whatever its import
        raises passes."""
        is_own = path.partition(".")[0] == BUILTIN_PACKAGE.partition(".")[0]
        with nullcontext() if is_own else self.importing(None):
            return import_target(path)

    def packages(self) -> list[str]:
        """The other hosts' packages that this process serves."""
        in_use = [adapter.module for adapter in self.all if adapter.is_in_use]
        return [name for module in in_use for name in module.HOST_PACKAGES]

    def explain(self, error: BaseException) -> str | None:
        """What an import error means that is about another host's modules."""
        said = (each.module.explain(error) for each in self.all if each.is_in_use)
        return next(filter(None, said), None)


def find_adapters() -> list[Adapter]:
    """The adapters that this installation has; imports none.

    Raises:
        FactsError: the file that names them is broken.
    """
    spec = builtin_spec()
    for folder in [] if spec is None else map(Path, spec.submodule_search_locations or ()):
        path = folder / toml.FILE_NAME
        if path.is_file():
            tables = toml.read_table(path).get("adapter", {})
            return [
                Adapter(name, f"{BUILTIN_PACKAGE}.{module}", prefix)
                for name, table in tables.items()
                for module, prefix in [toml.adapter_facts(table, name, str(path))]
            ]
    return []


def builtin_spec() -> ModuleSpec | None:
    return importlib.util.find_spec(BUILTIN_PACKAGE)
