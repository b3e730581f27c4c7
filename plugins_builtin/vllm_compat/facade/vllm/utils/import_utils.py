"""Modules and what they hold, by name or by file."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hookserve.hookspecs import running

__all__ = ["LazyLoader", "import_from_path", "import_plugin", "resolve_obj_by_qualname"]

__surface__ = {
    "LazyLoader": "live: a module that is imported when an attribute of it is asked for",
    "PlaceholderModule": "refused: it stands for a module that is missing; import that inside the "
    "function that needs it",
    "import_from_path": "live: imports a file under a name",
    "import_plugin": "live: imports a module, or else a file; what a file raises is logged, and "
    "None returned",
    "resolve_obj_by_qualname": "live: finds an object by its dotted path",
}

logger = logging.getLogger(__name__)


def resolve_obj_by_qualname(qualname: str) -> Any:
    """The object with the path ``package.module.name``."""
    module, _, name = qualname.rpartition(".")
    return getattr(importlib.import_module(module), name)


def import_from_path(module_name: str, file_path: str | os.PathLike[str]) -> ModuleType:
    """
    Raises:
        ModuleNotFoundError: there is no such file.
    """
    if not Path(file_path).is_file():
        raise ModuleNotFoundError(f"no file {os.fspath(file_path)!r}", name=module_name)
    spec = spec_from_file_location(module_name, file_path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{os.fspath(file_path)!r} is no module", name=module_name)
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    return module


def import_plugin(plugin: str) -> ModuleType | None:
    """The module of this name; where there is none, the file of this path, whose stem is the name
    of the module then."""
    name, is_path = Path(plugin).stem, os.sep in plugin or plugin.endswith(".py")
    if not is_path and find_spec(plugin.partition(".")[0]) is not None:
        return importlib.import_module(plugin)
    try:
        return import_from_path(name, plugin)
    except Exception:  # what it raises is the file's; who asked for it goes on without it
        asker = running()
        logger.error(
            "%s cannot be imported, and %s goes on without it:\n%s",
            plugin,
            "the program" if asker is None else f"plugin {asker.identity}",
            traceback.format_exc(),
        )
        return None


class LazyLoader(ModuleType):
    """Stands in a module's globals for another module, until an attribute of it is asked for."""

    def __init__(self, local_name: str, parent_module_globals: dict[str, Any], name: str) -> None:
        super().__init__(name)
        self._local_name = local_name
        self._globals = parent_module_globals

    def _load(self) -> ModuleType:
        module = importlib.import_module(self.__name__)
        self._globals[self._local_name] = module
        return module

    def __getattr__(self, item: str) -> Any:
        return getattr(self._load(), item)

    def __dir__(self) -> list[str]:
        return dir(self._load())
