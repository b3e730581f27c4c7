"""The real ``server run`` as a process: start it, wait for it, look at its tree, end all of it.

For tests, the parity check and the mutant runner alike; it knows only what an operator knows:
the command line, HTTP, the process table.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

START_TIMEOUT_S = 90.0
"""Generous: a shared two-core machine may be busy with something else."""

SERVER = Path(sysconfig.get_path("scripts")) / "server"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would change a server's settings.

    The cache folder stays: tests share the fetched model with the operator's own. A search path
    is put before the one of this process, which may be what brings the code under test. Threads
    that wait for one another do so without spinning for long: tests share their machine, and
    spinning there makes every step wait for a slice of the scheduler's time."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOOKSERVE_", "VLLM_", "TOY_")) or name == "HOOKSERVE_CACHE"
    }
    merged = {"GOMP_SPINCOUNT": "1000", **kept, **(extra or {})}
    paths = [(extra or {}).get("PYTHONPATH"), kept.get("PYTHONPATH")]
    if any(paths):
        merged["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return merged


def run_command(
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = START_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Run ``server ARGS`` to its end; for commands that are expected to end by themselves."""
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(
            [str(SERVER), *args],
            env=clean_environment(env),
            cwd=cwd or empty,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def wait_until(
    condition: Callable[[], Any], timeout: float, what: str, interval: float = 0.02
) -> Any:
    """Poll until the condition holds and return its value; fail loudly when it never does."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(interval)


def process_parents() -> dict[int, int]:
    """Process id to parent id, for every living (not zombie) process."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        state, parent = stat.rsplit(")", 1)[1].split()[:2]
        if state != "Z":
            parents[int(entry)] = int(parent)
    return parents


def descendants(root: int) -> set[int]:
    parents = process_parents()
    tree: set[int] = set()
    grew = {root}
    while grew:
        grew = {pid for pid, parent in parents.items() if parent in (tree | {root})} - tree
        tree |= grew
    return tree


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


class RunningServer:
    """``server run ARGS`` on a free port, or another ``program`` that takes its flags. A context
    manager: leaving it ends the whole tree."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: bool = True,
        timeout: float = START_TIMEOUT_S,
        program: Sequence[str] = (str(SERVER), "run"),
    ) -> None:
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._folder = tempfile.TemporaryDirectory(prefix="server-")
        self._seen: set[int] = set()
        folder = Path(self._folder.name)
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        work = cwd or folder / "cwd"
        work.mkdir(exist_ok=True)
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*program, *args, "--port", str(self.port)],
                env=clean_environment(env),
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            if ready:
                self.wait_ready(timeout)
        except BaseException:
            self.close()
            raise

    # -- looking ------------------------------------------------------------------------------

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def output(self) -> str:
        return f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def pids(self) -> set[int]:
        """The front and everything below it that lives now."""
        self._seen |= descendants(self.pid)
        return {self.pid} | descendants(self.pid)

    @property
    def engine_pid(self) -> int:
        found = [pid for pid in self.pids() if "hookserve.engine.process" in command_line(pid)]
        assert len(found) == 1, f"expected one engine process, found {found}\n{self.output()}"
        return found[0]

    def wait_ready(self, timeout: float = START_TIMEOUT_S) -> None:
        def is_ready() -> bool:
            if self.process.poll() is not None:
                code = self.process.returncode
                raise RuntimeError(f"the server ended with {code} at start\n{self.output()}")
            self._seen |= descendants(self.pid)
            return self.status("/readyz") == 200

        try:
            wait_until(is_ready, timeout, "readiness", interval=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def status(self, path: str, timeout: float = 5.0) -> int | None:
        """Status of a GET, ``None`` where nobody answers."""
        try:
            return httpx.get(self.base_url + path, timeout=timeout, trust_env=False).status_code
        except httpx.TransportError:
            return None

    def wait_exit(self, timeout: float = 30.0) -> int:
        return self.process.wait(timeout)

    # -- speaking -----------------------------------------------------------------------------

    def client(self, timeout: float = 120.0) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, timeout=timeout, trust_env=False)

    def async_client(self, timeout: float = 120.0) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=64)
        return httpx.AsyncClient(
            base_url=self.base_url, timeout=timeout, trust_env=False, limits=limits
        )

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        with self.client() as client:
            return client.get(path, **kwargs)

    def metric(self, name: str) -> float:
        """Sum of the samples of one metric, over its labels."""
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in self.get("/metrics").text.splitlines()
            if line.split("{")[0].split(" ")[0] == name
        ]
        assert values, f"no metric {name} in\n{self.get('/metrics').text}"
        return sum(values)

    # -- ending -------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        """End the tree: politely, then for certain. Never leaves a process behind."""
        tree = self.pids() | self._seen
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                tree |= descendants(self.pid)
                self.process.kill()
                self.process.wait()
        for pid in tree - {self.pid}:
            if "hookserve" in command_line(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
