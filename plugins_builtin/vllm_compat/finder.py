"""``FacadeFinder``: serves the package ``vllm`` and its modules from the real files under
``facade/``, in processes that prepared for it.

A module that is not there is not found, as with any package: ``find_spec`` answers ``None``. What
the files hold, each says in its ``__surface__``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = "vllm"
FOLDER = Path(__file__).parent / "facade"


class FacadeFinder:
    """A meta-path finder; first in line, so that no other package of that name is met."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name != PACKAGE and not name.startswith(f"{PACKAGE}."):
            return None
        base = FOLDER.joinpath(*name.split("."))
        if (base / "__init__.py").is_file():
            return spec_from_file_location(
                name, base / "__init__.py", submodule_search_locations=[str(base)]
            )
        file = base.with_name(f"{base.name}.py")
        return spec_from_file_location(name, file) if file.is_file() else None


def install() -> None:
    """Put the finder first in line, once."""
    if not any(isinstance(each, FacadeFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, FacadeFinder())
