"""Real clients against a real server: ``run.py [NAME ...]``.

Each client of ``clients.toml`` gets an environment of its own, beside the checkout's others, and
its script (``use_NAME.py``) runs there. What came of each check is a row of a table; one red row
fails the run. ``schemathesis`` runs when it is named, and not otherwise: it takes its time. What
the tests share must be importable (``PYTHONPATH=tests/support``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import RunningServer
from tiny_llama import write_tiny_llama

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
MODEL = "m"
SERVER_ARGS = (
    "--served-model-name=m",
    "--max-num-seqs=16",
    "--dtype=float32",
    # A small model would rather write blanks between the tokens of JSON than come to an end.
    '--structured-outputs-config={"disable_any_whitespace": true}',
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
)
FUZZER = "schemathesis"
TIMEOUT_S = 900.0
FUZZ_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)


class Row(NamedTuple):
    client: str
    check: str
    problem: str | None
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="clients; without one all but schemathesis")
    parser.add_argument("--model", default="", help="for the clients of a real model")
    parser.add_argument("--fuzz-seconds", type=int, default=180)
    found = parser.parse_args()
    clients = {each["name"]: each for each in tomllib.loads(_read("clients.toml"))["client"]}
    names = found.names or [name for name in clients if name != FUZZER]
    unknown = sorted(set(names) - set(clients))
    if unknown:
        parser.error(f"no client is called {unknown[0]}; there are {', '.join(clients)}")
    pythons = {name: environment_of(name, clients[name]["packages"]) for name in names}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for is_tiny in (False, True):
            chosen = [name for name in names if clients[name].get("tiny", False) is is_tiny]
            if chosen:
                model = str(write_tiny_llama(Path(folder, "tiny"))) if is_tiny else found.model
                rows += meet(model, {name: pythons[name] for name in chosen}, found.fuzz_seconds)
    return show(rows, clients)


def meet(model: str, pythons: dict[str, Path], fuzz_seconds: int) -> list[Row]:
    """What came of these clients' checks, at one server of this model."""
    rows: list[Row] = []
    words = [model, *SERVER_ARGS] if model else list(SERVER_ARGS)
    with RunningServer(words) as server:
        for name, python in pythons.items():
            if name == FUZZER:
                rows += fuzz(python, server.base_url, fuzz_seconds)
            else:
                rows += use(name, python, server.base_url, model)
    return rows


def environment_of(name: str, packages: Sequence[str]) -> Path:
    """The interpreter of the client's environment, which is made if it is not there yet."""
    folder = ENVIRONMENTS / name
    python, mark = folder / "bin" / "python", folder / ".packages"
    key = hashlib.sha256("\n".join(packages).encode()).hexdigest()
    if not mark.exists() or mark.read_text() != key:
        print(f"installing {' '.join(packages)} into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*install, *packages], check=True)
        mark.write_text(key)
    return python


def use(name: str, python: Path, url: str, folder: str) -> Iterator[Row]:
    """Run a client's script; one that says nothing, or ends with an error, is a row too."""
    script = HERE / f"use_{name}.py"
    done = _run([str(python), str(script), url, MODEL, folder])
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    checks = [each for each in found if "check" in each]
    for each in checks:
        yield Row(name, each["check"], each["problem"], each["seconds"])
    if done.returncode or not checks:
        yield Row(name, "the script itself", f"exit {done.returncode}: {done.stderr}", 0.0)


def fuzz(python: Path, url: str, seconds: int) -> Iterator[Row]:
    """What the document says, against what the server does."""
    command = [str(python.with_name("schemathesis")), "run", f"{url}/openapi.json", "--no-color"]
    command += ["--continue-on-failure", f"--max-time={seconds}", "-c", ",".join(FUZZ_CHECKS)]
    done = _run(command)
    print(done.stdout)
    yield Row(FUZZER, "the whole document", None if not done.returncode else "above", 0.0)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    ours = ("PYTHONPATH", "PYTHONSAFEPATH")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(
            command,
            cwd=empty,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )


def show(rows: Sequence[Row], clients: dict[str, dict[str, Any]]) -> int:
    """Print the table. Returns the exit code."""
    red = [row for row in rows if row.problem is not None]
    for row in red:
        print(f"\n{row.client}, {row.check}:\n{row.problem}")
    width = max(len(row.check) for row in rows)
    for row in rows:
        version = clients[row.client]["packages"][0].partition("==")[2]
        verdict = "ok" if row.problem is None else "RED"
        print(f"{row.client:13} {version:10} {row.check:{width}} {row.seconds:7.2f} s  {verdict}")
    print(f"{len(rows) - len(red)} passed, {len(red)} failed")
    return 1 if red else 0


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
