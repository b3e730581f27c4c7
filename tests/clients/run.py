"""Real clients against a real server: ``run.py [NAME ...]``.

Each client of ``clients.toml`` gets an environment of its own, beside the checkout's others, and
its script (``use_NAME.py``) runs there. What came of each check is a row of a table; one red row
fails the run. ``schemathesis`` runs when it is named, and not otherwise: it takes its time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
MODEL = "m"
SERVER_ARGS = "--max-model-len 2048 --enable-auto-tool-choice --tool-call-parser hermes"
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
    parser.add_argument("--server-args", default="", help="further words for `server run`")
    parser.add_argument("--fuzz-seconds", type=int, default=180)
    found = parser.parse_args()
    clients = {each["name"]: each for each in tomllib.loads(_read("clients.toml"))["client"]}
    names = found.names or [name for name, each in clients.items() if not each.get("is_fuzzer")]
    unknown = sorted(set(names) - set(clients))
    if unknown:
        parser.error(f"no client is called {unknown[0]}; there are {', '.join(clients)}")
    pythons = {name: environment_of(name, clients[name]["packages"]) for name in names}
    sys.path.insert(0, str(HERE.parent / "support"))
    from harness import RunningServer

    rows: list[Row] = []
    words = shlex.split(f"{SERVER_ARGS} --served-model-name {MODEL} {found.server_args}")
    with RunningServer(words) as server:
        for name, python in pythons.items():
            if clients[name].get("is_fuzzer"):
                rows += fuzz(python, server.base_url, found.fuzz_seconds)
            else:
                rows += use(name, python, server.base_url)
    return show(rows, clients)


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


def use(name: str, python: Path, url: str) -> Iterator[Row]:
    """Run a client's script; one that says nothing, or ends with an error, is a row too."""
    script = HERE / f"use_{name}.py"
    done = _run([str(python), str(script), url, MODEL])
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
    yield Row("schemathesis", "the whole document", None if not done.returncode else "above", 0.0)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(
            command,
            cwd=empty,
            env={**os.environ, "PYTHONSAFEPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
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
