#!/usr/bin/env python3
"""Break the project on purpose, one line at a time, and see that a named test turns red.

``run.py [--jobs 2] [NAME ...]`` reads ``mutants.toml``. Each mutant is applied to a copy of what is
committed. It counts as caught only if the mutated module still imports and the test fails by an
assertion; a test that breaks in another way has not understood what it saw. No two mutants may
stand in one function.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ASSERTIONS = ("assert ", "AssertionError", "Failed: DID NOT RAISE")
TEST_TIMEOUT_S = 300


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    test: str

    @property
    def module(self) -> str:
        """Of another file than Python's its package."""
        path = Path(self.file)
        named = path.with_suffix("") if path.suffix == ".py" else path.parent
        return "hookserve." + ".".join(named.parts)

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        text = path.read_text()
        path.write_text(text.replace(self.find, self.replace))

    def fault(self, tree: Path) -> str | None:
        """Why the mutant does not fit the tree, or ``None``."""
        path = tree / self.file
        if not path.exists():
            return f"no file {self.file}"
        count = path.read_text().count(self.find)
        if count != 1:
            return f"its text is found {count} times in {self.file}, expected once"
        if self.function(tree) is None:
            return "it stands in no function"
        return None

    def function(self, tree: Path) -> str | None:
        """Path and qualified name of the innermost function around the mutant."""
        text = (tree / self.file).read_text()
        line = text[: text.index(self.find)].count("\n") + 1
        line += len(self.find) - len(self.find.lstrip("\n"))
        found: list[str] = []
        if not self.file.endswith(".py"):  # of C the head of a function is at a line's beginning
            before = text[: text.index(self.find)]
            heads = re.findall(r"^\w.*?\b(\w+)\(", before, re.MULTILINE)
            return f"{self.file}::{heads[-1]}" if heads else None

        def visit(node: ast.AST, names: list[str]) -> None:
            for child in ast.iter_child_nodes(node):
                inner = names
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    inner = [*names, child.name]
                    ends = child.end_lineno or child.lineno
                    if child.lineno <= line <= ends and not isinstance(child, ast.ClassDef):
                        found[:] = inner
                visit(child, inner)

        visit(ast.parse(text), [])
        return f"{self.file}::{'.'.join(found)}" if found else None


def read_mutants() -> list[Mutant]:
    table = tomllib.loads((HERE / "mutants.toml").read_text())
    return [Mutant(**one) for one in table["mutant"]]


def archive(into: Path) -> Path:
    """What is committed, unpacked."""
    into.mkdir()
    tar = subprocess.run(
        ["git", "-c", "safe.directory=*", "archive", "HEAD"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    subprocess.run(["tar", "-x", "-C", str(into)], input=tar.stdout, check=True)
    return into


def environment(tree: Path) -> dict[str, str]:
    """The copy is what gets imported: by the tests and by every process that they start."""
    return {
        **os.environ,
        "PYTHONPATH": str(tree / ".typing"),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def imports(tree: Path, modules: Sequence[str]) -> str | None:
    """Why a module cannot be imported from the copy, or ``None``."""
    code = (
        "import importlib, os, sys\n"
        "for name in sys.argv[2:]:\n"
        "    file = os.path.realpath(importlib.import_module(name).__file__)\n"
        "    assert file.startswith(sys.argv[1] + os.sep), (name, file)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tree.resolve()), *modules],
        env=environment(tree),
        cwd=tree.parent,
        capture_output=True,
        text=True,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def run_tests(tree: Path, tests: Sequence[str]) -> dict[str, str]:
    """Outcome of each test: ``""`` for passed, else the first line of what went wrong."""
    report = tree.parent / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *(str(tree / test) for test in tests)]
    empty = tree.parent / "empty"
    empty.mkdir(exist_ok=True)
    try:
        subprocess.run(
            command,
            env=environment(tree),
            cwd=empty,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TEST_TIMEOUT_S * len(tests),
        )
    except subprocess.TimeoutExpired:
        return {"": "the test never ended"}
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname')}::{case.get('name')}"
        outcomes[name] = (
            f"{bad[0].tag}: {(bad[0].get('message') or '').splitlines()[0]}" if bad else ""
        )
    return outcomes or {"": "no test ran"}


def judge(mutant: Mutant, base: Path) -> tuple[bool, str]:
    """Whether the mutant was caught as it must be, and what was seen."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(base, tree, symlinks=True)
        mutant.apply(tree)
        if fault := imports(tree, [mutant.module]):
            return False, f"no longer imports: {fault}"
        outcomes = [outcome for outcome in run_tests(tree, [mutant.test]).values() if outcome]
    if not outcomes:
        return False, "survived"
    by_assertion = [
        outcome
        for outcome in outcomes
        if outcome.startswith(tuple(f"failure: {word}" for word in ASSERTIONS))
    ]
    if not by_assertion:
        return False, f"failed, but by no assertion: {outcomes[0]}"
    return True, by_assertion[0]


def check(mutants: Sequence[Mutant], base: Path) -> list[str]:
    """What is wrong before anything was broken."""
    faults = [f"{one.name}: {fault}" for one in mutants if (fault := one.fault(base))]
    functions: dict[str, str] = {}
    for one in read_mutants():
        if one.fault(base) is None:
            function = one.function(base) or ""
            if function in functions:
                faults.append(f"{one.name} and {functions[function]} both stand in {function}")
            functions[function] = one.name
    if not faults and (fault := imports(base, sorted({one.module for one in mutants}))):
        faults.append(f"the project does not import: {fault}")
    if not faults:
        tests = sorted({one.test for one in mutants})
        faults = [
            f"red without a mutant: {name}: {outcome}"
            for name, outcome in run_tests(base, tests).items()
            if outcome
        ]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2))
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    options = parser.parse_args()
    known = {one.name: one for one in read_mutants()}
    if options.list:
        print("\n".join(known))
        return 0
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no mutant {', '.join(unknown)}")
    mutants = [known[name] for name in options.names or known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        base = archive(Path(folder) / "tree")
        if faults := check(mutants, base):
            print("\n".join(faults))
            return 1
        caught = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, (red, seen) in zip(
                mutants, pool.map(lambda one: judge(one, base), mutants), strict=True
            ):
                caught += red
                print(f"{'red' if red else 'NOT RED':8}{mutant.name}: {seen[:160]}", flush=True)
    print(f"{caught} passed, {len(mutants) - caught} failed")
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
