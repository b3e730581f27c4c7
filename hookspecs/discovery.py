"""Finding plugins without importing any: installed entry points, built-ins, files, objects.

Each becomes a ``Plugin`` with an identity, a file, its facts, and a way to load it. Which of
them are wanted is ``selection``'s, loading them ``host``'s.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import facts as toml
from .adapters import BUILTIN_PACKAGE, Adapter, Adapters, builtin_spec
from .errors import PluginSelectionError, describe_error
from .plugin import (
    BUILTIN_GROUP,
    ENTRY_POINT_GROUP,
    FILE_GROUP,
    OBJECT_GROUP,
    Plugin,
)
from .selection import apply_settings, canonical

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

    from .settings import PluginSettings

HOST_DISTRIBUTION = "hookserve"
_REQUIRES = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;.*)?$")


def discover(
    files: Iterable[str], objects: Sequence[object], adapters: Iterable[Adapter] = ()
) -> list[Plugin]:
    """Every plugin there is, built-ins first, then third parties sorted by identity; one found
    twice is listed once, except that a file or object of an installed plugin is told apart when
    it is loaded.

    Args:
        files: ``--plugin``'s values.
        objects: plugins that are handed over.
        adapters: are asked for plugins of other hosts' groups.

    Raises:
        PluginSelectionError: if a ``--plugin`` file or module does not exist.
        FactsError: if the built-ins' own ``hookserve.toml`` is broken.
    """
    third = [*installed_plugins(adapters), *map(file_plugin, files), *object_plugins(objects)]
    found: dict[str, Plugin] = {}
    for plugin in third:
        other = found.setdefault(plugin.identity, plugin)
        if other is plugin or other.file == plugin.file:
            continue
        if not other.is_explicit and not plugin.is_explicit:
            other.fault = (
                f"{plugin.distribution} has two entry points called {plugin.name} in the group "
                f"{plugin.group}: which one is meant nobody can tell"
            )
        else:
            raise PluginSelectionError(
                f"--plugin: {other.file} and {plugin.file} are both called {plugin.identity}; "
                "rename one"
            )
    builtin = {plugin.identity: plugin for plugin in builtin_plugins()}
    by_identity = sorted(found.values(), key=lambda plugin: plugin.identity)
    return [*builtin.values(), *by_identity]


def find_plugins(
    settings: PluginSettings, say: Callable[[str], None] = lambda line: None
) -> list[Plugin]:
    """Every plugin there is, with what the operator said about each; imports none.

    Args:
        say: told a line for what an operator should know of other hosts' lists.

    Raises:
        PluginSelectionError: an entry of a list that fits no plugin or several, a ``--plugin`` that
            does not exist.
    """
    adapters = Adapters()
    plugins = discover(settings.files, (), adapters.all)
    apply_settings(plugins, settings)
    adapters.choose(plugins, settings, say)
    return plugins


# -- installed ------------------------------------------------------------------------------


def installed_plugins(adapters: Iterable[Adapter] = ()) -> list[Plugin]:
    """One plugin for each entry point of the group ``hookserve``, and what the adapters make of
    those of their groups."""
    version = _host_version()
    adapters = list(adapters)
    prefixes = tuple(adapter.prefix for adapter in adapters)
    installed, plugins = installed_entry_points(  # it reads every distribution's: once
        lambda group: group == ENTRY_POINT_GROUP or group.startswith(prefixes)
    )
    plugins += [_installed(entry, version) for entry in installed.get(ENTRY_POINT_GROUP, ())]
    for adapter in adapters:
        groups = sorted(name for name in installed if name.startswith(adapter.prefix))
        entries = [entry for name in groups for entry in installed[name]]
        if entries:
            plugins += adapter.module.make_plugins(entries)
    return plugins


def installed_entry_points(
    is_wanted: Callable[[str], bool],
) -> tuple[dict[str, list[EntryPoint]], list[Plugin]]:
    """Those of every distribution, by group; and a plugin with a fault for each distribution whose
    entry points cannot be read, as nobody knows what they are.

    Args:
        is_wanted: asked about each group.
    """
    from importlib import metadata  # slow to import, and `--help` needs no plugin

    try:
        found = metadata.entry_points()
        groups = [group for group in found.groups if is_wanted(group)]  # each is a search
        return {group: list(found.select(group=group)) for group in groups}, []
    except Exception:  # importlib.metadata documents no error for broken files
        return _one_by_one(is_wanted)


def _one_by_one(
    is_wanted: Callable[[str], bool],
) -> tuple[dict[str, list[EntryPoint]], list[Plugin]]:
    """What is found where one distribution is broken; slower, as it asks each for its name."""
    from importlib import metadata

    seen: set[str] = set()
    found: dict[str, list[EntryPoint]] = {}
    broken: list[Plugin] = []
    for distribution in metadata.distributions():
        folder = Path(getattr(distribution, "_path", ""))
        name, *_ = read_metadata(distribution)
        if (name or str(folder)) in seen:
            continue  # the first on the path is the one that is imported
        seen.add(name or str(folder))
        try:
            for entry in distribution.entry_points:
                if is_wanted(entry.group):
                    found.setdefault(entry.group, []).append(entry)
        except Exception as error:
            broken.append(_unreadable(name, folder, error))
    return found, broken


def _unreadable(distribution: str | None, folder: Path, error: Exception) -> Plugin:
    file = "entry_points.txt"
    said = f"the entry points in {folder / file} cannot be read: {describe_error(error)}"
    return Plugin(
        identity=f"{distribution or folder.name}:{ENTRY_POINT_GROUP}:{file}",
        name=file,
        group=ENTRY_POINT_GROUP,
        load=lambda: None,
        distribution=distribution,
        fault=f"{said}; install the distribution anew, or take it away",
    )


def _installed(entry: EntryPoint, host_version: str | None) -> Plugin:
    module = entry.value.partition(":")[0].strip()
    distribution, version, requires, fault = read_metadata(entry.dist)
    plugin = Plugin(
        identity=f"{distribution}:{ENTRY_POINT_GROUP}:{entry.name}",
        name=entry.name,
        group=ENTRY_POINT_GROUP,
        load=entry.load,
        distribution=distribution,
        version=version,
        fault=fault,
    )
    folders, origin = _top_level(module)
    plugin.file = _module_file(module, folders, origin)
    _read_facts(plugin, folders)
    if plugin.fault is None and not plugin.facts.api:
        _take_requirement(plugin, requires)
    if plugin.fault is None:
        plugin.fault = toml.range_fault(plugin.facts, host_version)
    return plugin


def read_metadata(
    distribution: Distribution | None,
) -> tuple[str | None, str | None, list[str], str | None]:
    """Name, version, requirements, and what is wrong: one distribution that was removed by half
    must not keep all others from being found."""
    if distribution is None:
        return None, None, [], None
    try:
        name, version = canonical(distribution.name), distribution.version
        return name, version, distribution.requires or [], None
    except Exception as error:  # importlib.metadata documents no error for missing files
        where = getattr(distribution, "_path", "its folder")
        return None, None, [], f"the metadata in {where} cannot be read: {type(error).__name__}"


def _read_facts(plugin: Plugin, folders: Sequence[Path]) -> None:
    for folder in folders:
        path = folder / toml.FILE_NAME
        if path.is_file():
            try:
                plugin.facts = toml.entry_facts(toml.read_table(path), plugin.name, str(path))
            except toml.FactsError as error:
                plugin.fault = str(error)
            return


def _take_requirement(plugin: Plugin, requires: Iterable[str]) -> None:
    for wanted in required_ranges(requires, HOST_DISTRIBUTION):
        plugin.facts = dataclasses.replace(plugin.facts, requires=wanted)


def required_ranges(requires: Iterable[str], distribution: str) -> list[str]:
    """The version ranges of a distribution in the requirements of another one, whatever extra or
    machine they are for; an empty one accepts all."""
    found = [match for each in requires if (match := _REQUIRES.match(each)) is not None]
    return [match.group(2).strip() for match in found if canonical(match.group(1)) == distribution]


def _host_version() -> str | None:
    from importlib import metadata

    try:
        return metadata.version(HOST_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None  # run from a folder that was never installed: nothing to compare with


def _top_level(module: str) -> tuple[list[Path], str | None]:
    """Folders and origin of the module's top-level package; imports nothing. A dotted name would
    import the parents."""
    name = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(name)
    except (ValueError, ImportError):
        return [], None  # half-imported or broken: the import itself will say so
    if spec is None:
        return [], None
    return [Path(folder) for folder in spec.submodule_search_locations or ()], spec.origin


def find_module_file(module: str) -> str | None:
    """The file of a module, imported or not; ``None`` where it is not found without importing its
    parents."""
    return _module_file(module, *_top_level(module))


def _module_file(module: str, folders: Sequence[Path], origin: str | None) -> str | None:
    parts = module.split(".")[1:]
    if not parts:
        return origin if origin is not None else next(map(str, folders), None)
    for folder in folders:
        base = folder.joinpath(*parts)
        for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if path.is_file():
                return str(path)
    return None


# -- built in -------------------------------------------------------------------------------


def builtin_plugins() -> list[Plugin]:
    """One plugin for each ``[entry.NAME]`` of ``plugins_builtin/hookserve.toml``.

    Raises:
        FactsError: if the file is missing or broken: the installation is not whole.
    """
    spec = builtin_spec()
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in map(Path, folders):
        path = folder / toml.FILE_NAME
        if path.is_file():
            entries = toml.read_table(path).get("entry", {})
            version = _host_version()
            return [
                _builtin(name, own, folder, str(path), version) for name, own in entries.items()
            ]
    raise toml.FactsError(
        f"{toml.FILE_NAME} of {BUILTIN_PACKAGE} was not found in {folders}; install hookserve again"
    )


def _builtin(name: str, own: Any, folder: Path, where: str, version: str | None) -> Plugin:
    known, module = toml.builtin_facts(own, name, where)
    path = f"{BUILTIN_PACKAGE}.{module}"
    return Plugin(
        identity=f"{HOST_DISTRIBUTION}:{BUILTIN_GROUP}:{name}",
        name=name,
        group=BUILTIN_GROUP,
        load=lambda: importlib.import_module(path),
        distribution=HOST_DISTRIBUTION,
        version=version,
        file=str(folder / f"{module}.py"),
        facts=known,
    )


# -- files, modules, objects ----------------------------------------------------------------


def file_plugin(given: str) -> Plugin:
    """The plugin behind one ``--plugin``: a file if it ends in ``.py`` or has a path separator,
    else a module (``module`` or ``module:attribute``).

    Raises:
        PluginSelectionError: if there is no such file or module.
    """
    if given.endswith(".py") or os.sep in given:
        return _from_file(given)
    module, _, attribute = given.partition(":")
    folders, origin = _top_level(module)
    file = _module_file(module, folders, origin)
    if file is None:
        hint = f"; a file is given as ./{module}.py" if module.isidentifier() else ""
        raise PluginSelectionError(f"--plugin: no module is called '{module}'{hint}")

    def load() -> Any:
        found: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
        return found

    plugin = Plugin(
        identity=f"{FILE_GROUP}:{module}", name=module, group=FILE_GROUP, load=load, file=file
    )
    _read_facts(plugin, folders)
    if plugin.fault is None:
        plugin.fault = toml.range_fault(plugin.facts, None)
    return plugin


def _from_file(given: str) -> Plugin:
    path = Path(os.path.abspath(os.path.expanduser(given)))
    if not path.is_file():
        is_folder = f"{path} is a folder; expected a file"
        raise PluginSelectionError(
            f"--plugin: {is_folder if path.is_dir() else f'there is no file {path}'}"
        )
    return Plugin(
        identity=f"{FILE_GROUP}:{path.stem}",
        name=path.stem,
        group=FILE_GROUP,
        load=_file_loader(path),
        file=str(path),
    )


def _file_loader(path: Path) -> Callable[[], ModuleType]:
    def load() -> ModuleType:
        # The module is importable under the file's name, so that a target such as
        # "hello:Hello" works in every process; it must not hide another module.
        name = path.stem.replace("-", "_")
        if not name.isidentifier():
            raise ImportError(f"{path.name} is no name for a module; rename the file")
        loaded = sys.modules.get(name)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            return loaded
        other = None if loaded is not None else importlib.util.find_spec(name)
        if loaded is not None or (other is not None and other.origin != str(path)):
            raise ImportError(f"{path.name} would hide the module '{name}'; rename the file")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    return load


def object_plugins(objects: Sequence[object]) -> list[Plugin]:
    """One plugin for each different object; two of one type get ``#2`` and so on."""
    plugins: list[Plugin] = []
    seen: list[object] = []
    for given in objects:
        if any(given is other for other in seen):
            continue
        seen.append(given)
        name = _object_name(given)
        taken = sum(plugin.name.partition("#")[0] == name for plugin in plugins)
        if taken:
            name = f"{name}#{taken + 1}"
        plugins.append(
            Plugin(
                identity=f"{OBJECT_GROUP}:{name}",
                name=name,
                group=OBJECT_GROUP,
                load=_giver(given),
                file=_object_file(given),
            )
        )
    return plugins


def _giver(given: object) -> Callable[[], object]:
    return lambda: given


def _object_name(given: object) -> str:
    if isinstance(given, ModuleType):
        return given.__name__
    return given.__name__ if isinstance(given, type) else type(given).__name__


def _object_file(given: object) -> str | None:
    module = given
    if not isinstance(given, ModuleType):
        owner = given if isinstance(given, type) else type(given)
        module = sys.modules.get(owner.__module__)
    return getattr(module, "__file__", None)
