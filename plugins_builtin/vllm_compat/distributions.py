"""Whose distribution an entry point is: vLLM's own, one that is ported, or any other.

Their names are discovery's to read.
"""

from __future__ import annotations

from importlib.metadata import Distribution

from hookserve.hookspecs.discovery import installed_entry_points
from hookserve.hookspecs.plugin import ENTRY_POINT_GROUP
from hookserve.hookspecs.selection import canonical

PACKAGE = "vllm"
_FIRST_FILE = f"{PACKAGE}/__init__.py"


def is_vllm_itself(distribution: Distribution | None) -> bool:
    """Whether it is vLLM, a build of it under another name, or a fork: the package's own first
    file is among its files. Files elsewhere under ``vllm/`` make no package of that name."""
    if distribution is None:
        return False
    if is_called_vllm(distribution):
        return True
    try:
        record = distribution.read_text("RECORD") or ""
    except UnicodeDecodeError:
        return False  # damaged; what is read of it later says so
    return any(line.startswith(f"{_FIRST_FILE},") for line in record.splitlines())


def is_called_vllm(distribution: Distribution) -> bool:
    return _name(distribution) == PACKAGE


def ported_distributions() -> set[str]:
    """The names of those that have an entry point for this host too."""
    found, _ = installed_entry_points(lambda each: each == ENTRY_POINT_GROUP)
    entries = found.get(ENTRY_POINT_GROUP, ())
    return {_name(entry.dist) for entry in entries if entry.dist is not None}


def _name(distribution: Distribution) -> str:
    """Empty where the metadata is broken, as of one that was removed by half."""
    try:
        return canonical(distribution.name)
    except Exception:  # importlib.metadata documents no error for missing files
        return ""
