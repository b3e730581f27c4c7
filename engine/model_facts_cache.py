"""Facts about models' classes, kept between starts: what they depend on, and where they lie.

An entry holds while every file of the packages that the class and its bases come from is the same,
and the versions of the plugin, of this program, of Python and of torch, and the plugins that are
active. A cache that cannot be read or written is a miss and no fault; failures are never kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .errors import ModelFileError
from .inspector_messages import Inspected, Sources
from .regular_file import read_text

if TYPE_CHECKING:
    from hookserve.hookspecs import Claim, Host

logger = logging.getLogger(__name__)

FOLDER = "model-facts"
FORMAT = 1
"""Raise when facts are read from a class in another way."""
MAX_READ_BYTES = 1 << 20
"""Of larger files size and time count, of others the content."""
MAX_TOTAL_BYTES = 32 << 20
"""So much is read of all files together; beyond that size and time count."""
_INSTALLED = ("site-packages", "dist-packages")
"""Folders whose files an installer replaces as a whole."""


class _Entry(msgspec.Struct, frozen=True):
    digest: str
    inspected: Inspected


class FactsCache:
    """The facts about the class of one claim.

    Args:
        cache_dir: of the program.
        claim: on the architecture; its target is text.
        host: the plugins of this process.
    """

    def __init__(self, cache_dir: str, claim: Claim, host: Host) -> None:
        self._claim = claim
        self._host = host
        who = f"{claim.owner} {claim.name} {claim.target_text()} {sys.prefix}"
        mark = hashlib.blake2b(who.encode(), digest_size=6).hexdigest()
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in claim.target_text())
        self.path = Path(cache_dir) / FOLDER / f"{name[:120]}-{mark}.json"

    def read(self) -> Inspected | None:
        """What was written, if everything that it depends on is as it was."""
        try:
            entry = msgspec.json.decode(read_text(str(self.path)), type=_Entry)
            is_fresh = entry.digest == self._digest(entry.inspected.sources, _Reader())
        except (ModelFileError, OSError, ValueError, RecursionError) as error:
            logger.debug("%s is ignored: %s", self.path, error)
            return None
        return entry.inspected if is_fresh else None

    def write(self, inspected: Inspected, since_ns: int) -> None:
        """Keep it; the file is replaced as a whole.

        Args:
            since_ns: when the look at the class began; what has changed since may be of another
                state, and is not kept.
        """
        temporary = None
        try:
            reader = _Reader()
            entry = _Entry(self._digest(inspected.sources, reader), inspected)
            if reader.newest_ns >= since_ns:
                raise ValueError("a file has changed meanwhile")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
                temporary = file.name
                file.write(msgspec.json.encode(entry))
            os.replace(temporary, self.path)
        except (OSError, ValueError) as error:
            logger.debug("%s is not written: %s", self.path, error)
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def _digest(self, sources: Sources, reader: _Reader) -> str:
        """
        Raises:
            OSError: a file cannot be read.
            ValueError: a package is not found.
        """
        found = hashlib.blake2b(digest_size=16)
        plugin = self._claim.plugin
        active = sorted(
            f"{each.identity} {each.version}"
            for each in self._host.plugins
            if each.state == "active" and not each.is_builtin
        )
        facts = (FORMAT, sys.version, _version("hookserve"), _version("torch"), plugin.version)
        settings = self._host.settings
        found.update(repr((facts, active, settings.config, settings.files)).encode())
        own = self._claim.target_text().replace(":", ".").partition(".")[0]
        for package in sources.packages:
            for root, path in _files_of(package):
                found.update(f"\n{package} {path.relative_to(root)} ".encode())
                found.update(reader.state_of(path, is_own=package == own))
        for name in sources.files:
            found.update(f"\n{name} ".encode())
            found.update(reader.state_of(Path(name)))
        return found.hexdigest()


class _Reader:
    """Tells the state of files, of as many by their content as is quick.

    Attributes:
        newest_ns: when the last of them was changed, by their own times.
    """

    def __init__(self) -> None:
        self.newest_ns = 0
        self._left = MAX_TOTAL_BYTES

    def state_of(self, path: Path, *, is_own: bool = False) -> bytes:
        """
        Args:
            is_own: it is of the plugin's own package. Of other packages an installer has replaced
                all files at once, with their times.
        """
        status = path.stat()
        self.newest_ns = max(self.newest_ns, status.st_mtime_ns)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            return f"of another kind {status.st_mode}".encode()  # a pipe, say, would never end
        is_installed = not set(_INSTALLED).isdisjoint(path.parts)
        if (is_installed and not is_own) or size > min(MAX_READ_BYTES, self._left):
            return f"{size} {status.st_mtime_ns}".encode()
        self._left -= size
        return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


def _files_of(package: str) -> Iterator[tuple[Path, Path]]:
    """Each file of a top-level package or module with the folder that it is told from; imports
    nothing.

    Raises:
        ValueError: there is no such package.
    """
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"package {package!r} cannot be found: {error}") from error
    if spec is None:
        raise ValueError(f"there is no package {package!r}")
    folders = spec.submodule_search_locations
    if folders is None:
        origin = Path(spec.origin or package)
        yield origin.parent, origin
    for folder in folders or ():
        for root, names, files in os.walk(folder):
            names[:] = sorted(name for name in names if name != "__pycache__")
            for file in sorted(files):
                yield Path(folder), Path(root, file)


def _version(distribution: str) -> str:
    """Empty where there is none: a tree that was put on the path."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
