"""``ForeignFiles``: modules that other distributions than vLLM's own install under ``vllm/``.

Some packages bring modules as part of the package ``vllm`` itself. What an installed distribution
lists in its RECORD there is served, and nothing else that lies in such a folder: vLLM itself may be
installed in it. An editable install lists no modules, so that its own are not served.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path

from hookserve.hookspecs.errors import describe_error

from .distributions import PACKAGE, is_vllm_itself

_PREFIX = f"{PACKAGE}/"
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)


class ForeignFiles:
    """Those that are installed now.

    Args:
        facade: the folder that holds the package that is served.

    Attributes:
        modules: file of each module, by its dotted name; a package's ``__init__`` too.
        folders: of packages without an ``__init__``.
        warnings: a line for each file that is not served, or that several distributions list.
    """

    def __init__(self, facade: Path) -> None:
        self.modules: dict[str, Path] = {}
        self.folders: dict[str, Path] = {}
        self.warnings: list[str] = []
        self._facade = facade
        self._owners: dict[str, str] = {}
        for site in dict.fromkeys(sys.path):
            if Path(site, PACKAGE).is_dir():  # nearly always there is none
                for distribution in metadata.distributions(path=[site]):
                    if not is_vllm_itself(distribution):
                        self._take(distribution, Path(site))

    def _take(self, distribution: metadata.Distribution, site: Path) -> None:
        try:
            owner, files = str(distribution.name), list(_listed(distribution))
        except Exception as error:  # importlib.metadata documents no error for broken files
            where = getattr(distribution, "_path", f"a distribution of {site}")
            self.warnings.append(
                f"what {where} lists cannot be read, and none of it is served under {_PREFIX}: "
                f"{describe_error(error)}"
            )
            return
        for listed in files:
            name = _module_name(listed)
            if name is None or not (site / listed).is_file():
                continue
            if _is_served(self._facade, name):
                self.warnings.append(
                    f"distribution {owner} installs {listed}, which would replace the module "
                    f"{name} that is served here; its file is not used"
                )
            elif name in self.modules:
                self.warnings.append(
                    f"distributions {self._owners[name]} and {owner} both install {listed}; "
                    f"{self.modules[name]} is served"
                )
            else:
                self.modules[name], self._owners[name] = site / listed, owner
                self._take_parents(name, (site / listed).parent)

    def _take_parents(self, name: str, folder: Path) -> None:
        if folder.joinpath("__init__.py") == self.modules[name]:
            folder = folder.parent
        parent = name.rpartition(".")[0]
        while parent != PACKAGE:
            if not _is_served(self._facade, parent):
                self.folders.setdefault(parent, folder)
            parent, folder = parent.rpartition(".")[0], folder.parent

    def search_locations(self, package: str) -> list[str]:
        """The folder of a package for its ``__path__``, if nothing lies in it that is not served;
        else none, since whoever looks there would find more."""
        file = self.modules.get(package)
        folder = self.folders.get(package) if file is None else file.parent
        if package == PACKAGE:
            folders = {self._site_folder(name) for name in self.modules}
            return sorted(str(each) for each in folders if self._is_whole(each))
        return [str(folder)] if folder is not None and self._is_whole(folder) else []

    def _site_folder(self, name: str) -> Path:
        folder = self.modules[name].parent
        while folder.name != PACKAGE:
            folder = folder.parent
        return folder

    def _is_whole(self, folder: Path) -> bool:
        known = set(self.modules.values())
        found = (path for path in folder.rglob("*") if path.name.endswith(_SUFFIXES))
        return all(path in known for path in found)


def unlisted(module: str) -> Path | None:
    """Where a module lies that is on the path, and that no distribution lists; what belongs to
    vLLM itself is none."""
    for site in dict.fromkeys(sys.path):
        base = Path(site, *module.split("."))
        for path in (base, base.with_name(f"{base.name}.py")):
            if path.exists():
                there = metadata.distributions(path=[site])
                return None if any(map(is_vllm_itself, there)) else path
    return None


def _listed(distribution: metadata.Distribution) -> Iterator[str]:
    """Files under ``vllm/`` of a RECORD."""
    record = distribution.read_text("RECORD") or ""
    if _PREFIX not in record:
        return
    for line in record.splitlines():
        path = line.partition(",")[0].strip('"')
        if path.startswith(_PREFIX):
            yield path


def _module_name(listed: str) -> str | None:
    suffix = next((each for each in _SUFFIXES if listed.endswith(each)), None)
    if suffix is None:
        return None
    parts = listed.removesuffix(suffix).split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if all(part.isidentifier() for part in parts) else None


def _is_served(facade: Path, name: str) -> bool:
    base = facade.joinpath(*name.split("."))
    return base.is_dir() or base.with_name(f"{base.name}.py").is_file()
