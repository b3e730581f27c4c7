"""From a C file to a loaded library, by the machine's own compiler, once for each machine.

What is in the file is ``cpu_kernels``' business. A library is kept in a folder that only its owner
can write to, under a name that covers all that it depends on: the source, the compiler, the
processor, and what plugins add.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-fopenmp",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
TIMEOUT_S = 60.0


class CompileError(RuntimeError):
    """There is no library, and why, as the end of a sentence."""


def load_library(
    source: Path,
    cache_dir: Path,
    keys: Sequence[str] = (),
    compilers: Sequence[str] = COMPILERS,
    *,
    more: Sequence[Path] = (),
) -> ctypes.CDLL:
    """Compile ``source`` unless that was done before, and load the result.

    The object is linked without an OpenMP runtime: a second one beside torch's would have threads
    of its own, and both would wait for each other's cores.

    Args:
        cache_dir: where libraries are kept; made if need be.
        keys: whatever else a library depends on.
        compilers: programs to look for on PATH, the first one found counts.
        more: files in the same folder: what ends in ``.c`` becomes part of the library, the rest
            is included by others.

    Raises:
        CompileError: there is no compiler, it failed, or what it made cannot be loaded.
    """
    compiler = _find(compilers)
    try:
        files = [source, *more]
        path = cache_dir / f"{source.stem}-{_key(files, compiler, keys)}.so"
        _make_folder(cache_dir)
        if not path.exists():
            _compile(compiler, [file for file in files if file.suffix == ".c"], path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(f"the library cannot be made or loaded: {error}") from error


def _find(compilers: Sequence[str]) -> str:
    for name in compilers:
        found = shutil.which(name)
        if found:
            return found
    raise CompileError(f"there is no C compiler on PATH ({', '.join(compilers)})")


def _key(files: Sequence[Path], compiler: str, keys: Sequence[str]) -> str:
    version = _run([compiler, "--version"])
    texts = [file.read_text("utf-8") for file in files]
    parts = [*texts, compiler, version, _processor(), *FLAGS, *keys]
    # Whatever a plugin's text holds.
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:20]


def _processor() -> str:
    """What the processor can do, as far as the system says so."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(told)))


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise CompileError(
            f"the folder {folder} can be written to by others; code is not loaded from there"
        )


def _compile(compiler: str, sources: Sequence[Path], path: Path) -> None:
    """Into a name of its own first, so that nobody loads half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        compiled = [os.path.join(work, f"{source.stem}.o") for source in sources]
        linked = os.path.join(work, "whole.so")
        for source, part in zip(sources, compiled, strict=True):
            _run([compiler, *FLAGS, "-c", str(source), "-o", part])
        _run([compiler, "-shared", *compiled, "-o", linked])
        os.replace(linked, path)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]} did not end within {TIMEOUT_S:g} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else "no words")
        raise CompileError(f"{command[0]} ended with {done.returncode}: {first[:200]}")
    return done.stdout
