"""What became of each third-party plugin when it was last loaded, kept between runs.

``plugins list`` shows it without loading anything. An entry holds for one version of one file:
after a reinstall or an edit it is forgotten. A cache that cannot be read or written is no fault.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from hookserve.engine.errors import ModelFileError
from hookserve.engine.regular_file import read_text

logger = logging.getLogger(__name__)

FILE_NAME = "plugin-loads.json"


class LoadResult(msgspec.Struct, frozen=True):
    """How one load ended. ``stamp`` tells which state of the plugin's file it speaks of."""

    stamp: str
    state: str
    stage: str | None = None
    error: str | None = None
    load_ms: float | None = None
    traceback: str | None = None

    def text(self) -> str:
        if self.state == "out":
            return f"failed at stage '{self.stage}': {self.error}"
        return "ok" if self.load_ms is None else f"ok, {self.load_ms:.0f} ms"


def file_stamp(version: str | None, file: str | None) -> str:
    """Version, size and modification time, or as much of it as there is."""
    try:
        status = os.stat(file) if file else None
    except OSError:
        status = None
    return f"{version}:{status.st_size}:{status.st_mtime_ns}" if status else f"{version}:"


def read_results(cache_dir: str) -> dict[str, LoadResult]:
    """By identity; empty if there is no cache."""
    try:
        content = read_text(str(Path(cache_dir) / FILE_NAME))
        return msgspec.json.decode(content, type=dict[str, LoadResult])
    except (ModelFileError, msgspec.MsgspecError) as error:
        logger.debug("the cache of plugin loads is ignored: %s", error)
        return {}


def write_results(cache_dir: str, results: Mapping[str, LoadResult]) -> None:
    """Merge into what is there; the file is replaced as a whole."""
    if not results:
        return
    merged = {**read_results(cache_dir), **results}
    try:
        content = msgspec.json.encode(merged)
        os.makedirs(cache_dir, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache_dir, prefix=FILE_NAME, delete=False) as file:
            file.write(content)
        os.replace(file.name, Path(cache_dir) / FILE_NAME)
    except (OSError, UnicodeEncodeError) as error:  # a file's name may be no text
        logger.debug("the cache of plugin loads is not written: %s", error)


def results_of(reports: Iterable[Mapping[str, object]]) -> dict[str, LoadResult]:
    """The results that reports of a loading process tell, third parties alone.

    Args:
        reports: ``PluginReport``s as plain data.
    """
    found: dict[str, LoadResult] = {}
    for report in reports:
        if report["group"] == "builtin" or report["state"] not in ("active", "out"):
            continue
        plain = {
            key: report.get(key) for key in ("state", "stage", "error", "load_ms", "traceback")
        }
        stamp = file_stamp(_text(report.get("version")), _text(report.get("file")))
        result = msgspec.convert({**plain, "stamp": stamp}, LoadResult)
        found[str(report["identity"])] = result
    return found


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
