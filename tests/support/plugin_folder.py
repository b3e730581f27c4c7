"""Plugins on disk as an installer leaves them: a module, and metadata with entry points.

For plugins that are one short file; ``tests/toys`` holds one that is built into a wheel.
"""

from __future__ import annotations

import importlib
import textwrap
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
) -> None:
    """Write a distribution into the folder ``site``, which goes on PYTHONPATH.

    Args:
        sources: package name to the text of its ``__init__.py``.
        entries: entry-point name to ``module[:attr]``; by default each package under its name.
        toml: text of ``hookserve.toml`` beside each package's ``__init__.py``.
    """
    entries = entries or {package: package for package in sources}
    written = []
    for package, source in sources.items():
        folder = site / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(source))
        written.append(f"{package}/__init__.py,,")
        if toml is not None:
            (folder / "hookserve.toml").write_text(textwrap.dedent(toml))
            written.append(f"{package}/hookserve.toml,,")
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in entries.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    (info / "INSTALLER").write_text("tests\n")
    (info / "RECORD").write_text("\n".join([*written, ""]))
    # What was listed in the same tick of the clock would stay as it was.
    importlib.invalidate_caches()
