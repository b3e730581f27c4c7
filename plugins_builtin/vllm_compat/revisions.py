"""Revisions of a repository, which code of the ecosystem asks for and local files have none of."""

from __future__ import annotations

import os


def refuse_revision(model: str | os.PathLike[str], revision: str | None) -> None:
    """
    Raises:
        ValueError: there is one.
    """
    if revision is not None:
        raise ValueError(f"revision {revision!r}: {os.fspath(model)} is read as local files")
