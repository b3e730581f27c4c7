"""``FacadeFinder``: serves the package ``vllm`` and its modules from the real files under
``facade/``, and its distribution record, in processes that prepared for it.

A module that is not there is not found, as with any package: ``find_spec`` answers ``None``, and
who asked is ``misses``'s to know. What the files hold, each says in its ``__surface__``. What other
distributions add to the package is ``foreign_files``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hookserve.hookspecs import HostError, Plugin
from hookserve.hookspecs.selection import canonical

from .distributions import PACKAGE
from .foreign_files import ForeignFiles
from .misses import Misses
from .older_paths import OlderPaths
from .presented_version import PresentedVersions, unmet_requirement
from .record import ServedDistribution

FOLDER = Path(__file__).parent / "facade"


class FacadeFinder(MetaPathFinder):
    """A meta-path finder; first in line, so that no other package of that name is met.

    Attributes:
        misses: what was asked for and is not there.
        versions: what is presented to whom.
    """

    def __init__(self) -> None:
        self.misses = Misses()
        self._older = OlderPaths()
        self.versions = PresentedVersions()
        self._foreign: ForeignFiles | None = None

    @property
    def foreign(self) -> ForeignFiles:
        if self._foreign is None:
            self._foreign = ForeignFiles(FOLDER)
        return self._foreign

    def invalidate_caches(self) -> None:
        self._foreign = None

    def present_to(self, plugins: Sequence[Plugin]) -> list[str]:
        """Take the plugins whose wishes count from now on; answers what to say of the files that
        other distributions add and that are not served."""
        self.versions = PresentedVersions(plugins)
        for plugin in plugins:
            unmet = unmet_requirement(plugin) if plugin.state == "found" else None
            if unmet is not None:
                plugin.warnings.append(unmet)
        return self.foreign.warnings

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        spec = self._served(name) or self._of_others(name)
        if spec is None:
            self.misses.note(name)
        return spec

    def _served(self, name: str) -> ModuleSpec | None:
        base = FOLDER.joinpath(*name.split("."))
        package = base / "__init__.py"
        if package.is_file():
            others = self.foreign.search_locations(name) if name == PACKAGE else []
            return _spec(name, package, [str(base), *others], self.misses, self._older)
        file = base.with_name(f"{base.name}.py")
        return _spec(name, file, None, self.misses, self._older) if file.is_file() else None

    def _of_others(self, name: str) -> ModuleSpec | None:
        file = self.foreign.modules.get(name)
        if file is None and name not in self.foreign.folders:
            return None
        locations = self.foreign.search_locations(name)
        if file is None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = locations
            return spec
        is_package = file.name.startswith("__init__.")
        return spec_from_file_location(
            name, file, submodule_search_locations=locations if is_package else None
        )

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterator[Distribution]:
        is_of_this_process = "path" not in vars(context)  # not of folders that somebody names
        if is_of_this_process and (context.name is None or canonical(context.name) == PACKAGE):
            yield ServedDistribution(FOLDER, self.versions.asked_now)


class ServedModule(ModuleType):
    """A module of the facade: a name that it lacks is noted on the way to the error."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            loader = self.__loader__
            assert isinstance(loader, ServedLoader)
            loader.misses.note(f"{self.__name__}:{name}")
        raise AttributeError(
            f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self
        )


class ServedLoader(SourceFileLoader):
    """Loads a file of the facade."""

    def __init__(self, name: str, path: str, misses: Misses, older: OlderPaths) -> None:
        super().__init__(name, path)
        self.misses = misses
        self._older = older

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ServedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        home = vars(module).get("__older_path_of__")
        if home is not None:
            self._older.note(module.__name__, home)


def _spec(
    name: str, file: Path, locations: list[str] | None, misses: Misses, older: OlderPaths
) -> ModuleSpec | None:
    loader = ServedLoader(name, str(file), misses, older)
    return spec_from_file_location(name, file, loader=loader, submodule_search_locations=locations)


def installed() -> FacadeFinder | None:
    """The finder of this process."""
    return next((each for each in sys.meta_path if isinstance(each, FacadeFinder)), None)


def install() -> FacadeFinder:
    """Put the finder first in line, once.

    Raises:
        HostError: another ``vllm`` is already imported.
    """
    found = installed()
    if found is None:
        _refuse_another()
        found = FacadeFinder()
        sys.meta_path.insert(0, found)
    return found


def _refuse_another() -> None:
    module = sys.modules.get(PACKAGE)
    if module is None or isinstance(module, ServedModule):
        return
    users = [
        name
        for name, other in list(sys.modules.items())
        if name.partition(".")[0] != PACKAGE and isinstance(other, ModuleType) and _uses(other)
    ]
    who = ", ".join(users[:5]) or "nobody who still holds it"
    raise HostError(
        f"another package 'vllm' is already imported in this process, from "
        f"{getattr(module, '__file__', None)}, and plugins written for vLLM would meet both; it is "
        f"used by: {who}; import it after the server or in another process, or leave those plugins "
        "out with --disable-plugins"
    )


def _uses(module: ModuleType) -> bool:
    """Whether a module holds something of the package."""
    for value in list(vars(module).values()):
        home = (
            value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        )
        if isinstance(home, str) and home.partition(".")[0] == PACKAGE:
            return True
    return False
