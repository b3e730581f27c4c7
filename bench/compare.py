#!/usr/bin/env python3
"""Compare servers on one machine: each is started in turn, given the same load, and stopped.

    bench/compare.py --model FOLDER \\
        'ours=server run {model} --port {port} --served-model-name m' \\
        'other=other-server {model} --port {port} --alias m'

A contestant is NAME=COMMAND: a shell-like command line that serves in the foreground, an
OpenAI-compatible completions API with the model named ``m``. With no contestant given, this
checkout's own server runs alone. A small machine drifts, so contestants take turns (A B A B), each
figure is the median of the rounds with its spread, and what matters are the ratios to the first
one: above 1.00 the first is better. The load comes from ``server bench``. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OWN_SERVER = Path(sys.executable).with_name("server")
PROC = Path("/proc")


@dataclass(frozen=True)
class Figure:
    """A row of the table: where it is found in the load generator's report."""

    title: str
    workload: str
    key: str
    more_is_better: bool


FIGURES = (
    Figure("s from start to first completion", "", "ready_s", False),
    Figure("MiB of the whole tree (Pss), peak", "", "peak_mib", False),
    Figure("decode tok/s, 1 stream", "single", "out_tok_s", True),
    Figure("TTFT ms, 128-token prompt", "single", "ttft_ms_p50", False),
    Figure("output tok/s, 8 streams", "batch8", "out_tok_s", True),
    Figure("output tok/s, 32 streams", "batch32", "out_tok_s", True),
    Figure("prompt tok/s, 1024-token prompts", "prefill", "in_tok_s", True),
    Figure("s a request, shared 1024 prefix", "prefix", "latency_s_mean", False),
    Figure("output tok/s, mixed lengths", "mixed", "out_tok_s", True),
    Figure("TTFT ms p50, mixed lengths", "mixed", "ttft_ms_p50", False),
)
WORKLOADS = ("single", "batch8", "batch32", "prefill", "prefix", "mixed")
QUICK = ("single", "batch8", "prefill")


@dataclass
class Contestant:
    name: str
    command: str
    seen: dict[Figure, list[float]] = field(default_factory=dict)

    def argv(self, model: str, port: int) -> list[str]:
        return shlex.split(self.command.format(model=model, port=port))


# -- one life of a server --------------------------------------------------------------------------


@contextmanager
def started(contestant: Contestant, options: argparse.Namespace) -> Iterator[subprocess.Popen[Any]]:
    """The server as a process group of its own, ended with everything in it."""
    with tempfile.NamedTemporaryFile(
        "w", prefix=f"{contestant.name}-", suffix=".log", delete=False
    ) as log:
        process = subprocess.Popen(
            contestant.argv(options.model, options.port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        print(f"{contestant.name}: its output is in {log.name}", file=sys.stderr)
        raise
    else:
        os.unlink(log.name)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue


def completes(port: int) -> bool:
    """Whether a completion of one token comes back whole."""
    body = {"model": "m", "prompt": [400, 500, 600], "max_tokens": 1, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as reply:
            return bool(json.load(reply)["choices"])
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return False


def wait_for_completion(process: subprocess.Popen[Any], port: int, limit_s: float) -> float:
    """Seconds from now, which is the start, to the first finished completion."""
    start = time.monotonic()
    while not completes(port):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode} before it was ready")
        if time.monotonic() - start > limit_s:
            raise SystemExit(f"no completion within {limit_s:g} s")
        time.sleep(0.02)
    return time.monotonic() - start


class PeakMemory(threading.Thread):
    """Watches the proportional set size of a process and all its descendants."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.mib = root, 0.0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1.0):
            self.mib = max(self.mib, sum(map(pss_mib, tree_of(self.root))))

    def stop(self) -> float:
        self.mib = max(self.mib, sum(map(pss_mib, tree_of(self.root))))
        self._over.set()
        return self.mib


def tree_of(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    tree, todo = set(), [root]
    while todo:
        pid = todo.pop()
        tree.add(pid)
        todo += children.get(pid, [])
    return tree


def pss_mib(pid: int) -> float:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def apply_load(options: argparse.Namespace, round_number: int) -> dict[str, dict[str, float]]:
    """One round of every workload, by ``server bench`` in a process of its own."""
    command = [*shlex.split(options.load), "--url", f"http://127.0.0.1:{options.port}"]
    command += ["--model", "m", "--rounds", "1", "--first-round", str(round_number)]
    command += ["--workloads", ",".join(options.workloads)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.load_timeout)
    if done.returncode:
        raise SystemExit(f"the load generator failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(contestant: Contestant, options: argparse.Namespace, round_number: int) -> None:
    with started(contestant, options) as process:
        ready_s = wait_for_completion(process, options.port, options.start_timeout)
        memory = PeakMemory(process.pid)
        memory.start()
        report = apply_load(options, round_number)
        report[""] = {"ready_s": ready_s, "peak_mib": memory.stop()}
    for figure in FIGURES:
        if figure.workload in report:
            value = report[figure.workload][figure.key]
            contestant.seen.setdefault(figure, []).append(value)


# -- the table -------------------------------------------------------------------------------------


def ratio(figure: Figure, first: Contestant, other: Contestant) -> float:
    ours, theirs = (statistics.median(one.seen[figure]) for one in (first, other))
    return ours / theirs if figure.more_is_better else theirs / ours


def cell(values: list[float]) -> str:
    middle = statistics.median(values)
    spread = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{middle:.4g}{spread}"


def table(contestants: list[Contestant]) -> str:
    """The comparison as Markdown."""
    first, *others = contestants
    head = ["", *(one.name for one in contestants)]
    head += [f"{first.name} / {one.name}" for one in others]
    rows = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for figure in FIGURES:
        if figure in first.seen:
            row = [figure.title, *(cell(one.seen[figure]) for one in contestants)]
            row += [f"{ratio(figure, first, one):.2f}x" for one in others]
            rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )


def as_json(contestants: list[Contestant]) -> dict[str, Any]:
    first = contestants[0]
    return {
        figure.title: {
            "rounds": {one.name: one.seen[figure] for one in contestants},
            "ratio": {one.name: ratio(figure, first, one) for one in contestants[1:]},
        }
        for figure in FIGURES
        if figure in first.seen
    }


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in (PROC / "cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


# -- the command line ------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> tuple[list[Contestant], argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contestants", nargs="*", metavar="NAME=COMMAND")
    parser.add_argument("--model", default="", help="replaces {model} in the commands")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of three workloads")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--start-timeout", type=float, default=600.0, metavar="S")
    parser.add_argument("--load-timeout", type=float, default=1800.0, metavar="S")
    parser.add_argument(
        "--load", default=f"{shlex.quote(str(OWN_SERVER))} bench", metavar="COMMAND"
    )
    parser.add_argument("--json", type=Path, help="write every figure of every round there")
    options = parser.parse_args(argv)
    options.workloads = QUICK if options.quick else tuple(options.workloads.split(","))
    options.rounds = 1 if options.quick else options.rounds
    if not options.port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options.port = probe.getsockname()[1]
    own = f"hookserve={shlex.quote(str(OWN_SERVER))} run {{model}} --port {{port}}"
    contestants = []
    for text in options.contestants or [own + " --served-model-name m"]:
        name, equals, command = text.partition("=")
        if not equals:
            parser.error(f"expected NAME=COMMAND, not {text!r}")
        contestants.append(Contestant(name, command))
    return contestants, options


def main(argv: list[str] | None = None) -> None:
    contestants, options = parse(argv)
    for round_number in range(options.rounds):
        for contestant in contestants:
            print(f"round {round_number + 1}: {contestant.name}", file=sys.stderr, flush=True)
            measure(contestant, options, round_number)
    print(f"{machine()}; median of {options.rounds} rounds, the spread in brackets\n")
    print(table(contestants))
    if options.json:
        options.json.write_text(json.dumps(as_json(contestants), indent=1))


if __name__ == "__main__":
    main()
