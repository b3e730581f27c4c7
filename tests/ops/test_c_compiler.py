"""Libraries are compiled once, kept apart by all that they depend on, and refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookserve.ops.c_compiler import CompileError, load_library


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def test_a_library_is_compiled_once_and_loaded(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert load_library(source, folder).answer() == 42
    (first,) = libraries(folder)
    made = first.stat().st_mtime_ns
    assert load_library(source, folder).answer() == 42
    assert libraries(folder) == [first]
    assert first.stat().st_mtime_ns == made
    assert list(folder.iterdir()) == [first], "work is cleaned up"


def test_what_a_library_depends_on_is_in_its_name(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    load_library(source, folder)
    load_library(source, folder, keys=["plugin 1 \ud800"])
    assert len(libraries(folder)) == 2
    source.write_text("int answer(void) { return 43; }\n")
    assert load_library(source, folder).answer() == 43
    assert len(libraries(folder)) == 3


def test_without_a_compiler_the_reason_says_so(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"no C compiler on PATH \(no-such-cc\)"):
        load_library(source, tmp_path / "kept", compilers=("no-such-cc",))


def test_a_failing_compiler_is_quoted(source: Path, tmp_path: Path) -> None:
    source.write_text("int answer(void) { return nothing; }\n")
    with pytest.raises(CompileError, match=r"ended with 1: .*error.*nothing"):
        load_library(source, tmp_path / "kept")
    assert not libraries(tmp_path / "kept")


def test_a_folder_that_others_can_write_to_is_refused(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(CompileError, match="can be written to by others"):
        load_library(source, folder)


def test_a_folder_that_cannot_be_made_is_a_reason(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match="cannot be made or loaded"):
        load_library(source, tmp_path / "file" / "kept")


def test_a_compiler_that_cannot_be_run_is_a_reason(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cc"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompileError, match=r"cannot be made or loaded: .*format"):
        load_library(source, tmp_path / "kept")
