"""Plugins on disk as an installer leaves them: a module, and metadata with entry points.

For plugins that are one short file; ``tests/toys`` holds one that is built into a wheel.
"""

from __future__ import annotations

import importlib
import shutil
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path


def install_plugin(
    site: Path,
    distribution: str,
    sources: Mapping[str, str],
    *,
    entries: Mapping[str, str] | None = None,
    toml: str | None = None,
    group: str = "hookserve",
    groups: Mapping[str, Mapping[str, str]] | None = None,
    version: str = "1.0",
    extra_metadata: str = "",
    files: Mapping[str, str] | None = None,
) -> None:
    """Write a distribution into the folder ``site``, which goes on PYTHONPATH.

    Args:
        sources: package name to the text of its ``__init__.py``.
        entries: entry-point name to ``module[:attr]``; by default each package under its name.
        toml: text of ``hookserve.toml`` beside each package's ``__init__.py``.
        groups: in place of ``entries`` and ``group``: entry points by group.
        extra_metadata: further lines of ``METADATA``, each with its line end.
        files: text of further files by their paths under ``site``.
    """
    groups = groups or {group: entries or {package: package for package in sources}}
    written = []
    for package, source in sources.items():
        folder = site / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(source))
        written.append(f"{package}/__init__.py,,")
        if toml is not None:
            (folder / "hookserve.toml").write_text(textwrap.dedent(toml))
            written.append(f"{package}/hookserve.toml,,")
    for path, text in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(textwrap.dedent(text))
        written.append(f"{path},,")
    write_metadata(site, distribution, groups, written, version, extra_metadata)


def install_package(site: Path, project: Path) -> None:
    """Install what one of ``tests/toys`` holds into the folder ``site``: the package of its
    ``pyproject.toml`` beside it, and the metadata that an installer would make of that.

    Args:
        project: the folder of the ``pyproject.toml``.
    """
    told = tomllib.loads((project / "pyproject.toml").read_text())
    about = told["project"]
    written = []
    for package in told["tool"]["setuptools"]["packages"]:
        shutil.copytree(
            project / package, site / package, ignore=shutil.ignore_patterns("__pycache__")
        )
        written += [f"{path.relative_to(site)},," for path in (site / package).rglob("*.py")]
    required = "".join(f"Requires-Dist: {each}\n" for each in about.get("dependencies", ()))
    write_metadata(site, about["name"], about["entry-points"], written, about["version"], required)


def write_metadata(
    site: Path,
    distribution: str,
    groups: Mapping[str, Mapping[str, str]],
    record: list[str],
    version: str = "1.0",
    extra: str = "",
) -> Path:
    """Write a distribution's ``.dist-info``; return the folder.

    Args:
        record: lines of ``RECORD``.
        extra: further lines of ``METADATA``.
    """
    site.mkdir(parents=True, exist_ok=True)
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{extra}"
    )
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "INSTALLER").write_text("tests\n")
    (info / "RECORD").write_text("\n".join([*record, ""]))
    # What was listed in the same tick of the clock would stay as it was.
    importlib.invalidate_caches()
    return info
