"""The rules that hold across files: which way imports point, who reads the environment, what
each file opens with. import-linter checks the import graph too; this runs with the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ORDER = ("hookspecs", "ops", "engine", "server", "plugins_builtin")
"""From the lowest layer up; a file imports from its own layer and from lower ones."""

READS_THE_ENVIRONMENT = {
    "server/settings.py",
    "engine/environment.py",
    "hookspecs/snapshot.py",  # what plugins change there is undone; no setting comes from it
}


@pytest.fixture(scope="module")
def trees(source_root: Path) -> dict[str, ast.Module]:
    """Path below the root to syntax tree, for every Python file of the five folders."""
    found = {
        path.relative_to(source_root).as_posix(): ast.parse(path.read_text())
        for folder in ORDER
        for path in sorted((source_root / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    assert len(found) > len(ORDER)
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def nodes_that_run(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only type checkers read."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from nodes_that_run(other)
            continue
        yield child
        yield from nodes_that_run(child)


def imported_names(tree: ast.Module) -> Iterator[str]:
    for node in nodes_that_run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            if node.module == "hookserve":
                yield from (f"hookserve.{alias.name}" for alias in node.names)


def test_imports_point_one_way(trees: dict[str, ast.Module]) -> None:
    upward = []
    for path, tree in trees.items():
        own = ORDER.index(path.partition("/")[0])
        for name in imported_names(tree):
            parts = name.split(".")
            if parts[0] == "hookserve" and len(parts) > 1 and ORDER.index(parts[1]) > own:
                upward.append(f"{path} imports {name}")
    assert not upward, "\n".join(upward)


def package_of(name: str) -> str:
    """The package that a file (a path) or a module (a dotted name) belongs to."""
    parts = name.removesuffix(".py").replace("/", ".").removeprefix("hookserve.").split(".")
    if parts[:3] == ["plugins_builtin", "vllm_compat", "facade"]:
        return "vllm"  # what it is served as
    inner = ".".join(parts[:2])
    return inner if inner in ("engine.text", "ops.triton") else parts[0]


def test_a_package_imports_itself_relatively(trees: dict[str, ast.Module]) -> None:
    """Type checkers see a file that is imported both ways as two modules."""
    absolute = [
        f"{path} imports {name}"
        for path, tree in trees.items()
        for name in imported_names(tree)
        if name.startswith("hookserve.") and package_of(name) == package_of(path)
    ]
    assert not absolute, "\n".join(absolute)


def test_only_the_settings_read_the_environment(trees: dict[str, ast.Module]) -> None:
    reads = []
    for path, tree in trees.items():
        if path in READS_THE_ENVIRONMENT:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                reads.append(f"{path}:{node.lineno}")
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                names = {alias.name for alias in node.names}
                if names & {"environ", "getenv", "environb"}:
                    reads.append(f"{path}:{node.lineno}")
    assert not reads, "\n".join(reads)


def test_each_file_opens_with_what_it_holds(trees: dict[str, ast.Module]) -> None:
    silent = [path for path, tree in trees.items() if not ast.get_docstring(tree)]
    assert not silent, "\n".join(silent)


def test_each_file_stays_readable_in_one_sitting(
    source_root: Path, trees: dict[str, ast.Module]
) -> None:
    long = {path: len((source_root / path).read_text().splitlines()) for path in trees}
    assert not {path: lines for path, lines in long.items() if lines > 600}


def test_nothing_is_promised_instead_of_built(
    trees: dict[str, ast.Module], source_root: Path
) -> None:
    promise = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [path for path in trees if promise.search((source_root / path).read_text())]
    assert not found, "\n".join(found)


def test_no_file_names_a_place_on_somebodys_machine(source_root: Path) -> None:
    place = re.compile(r"(?<![\w.])/(?:work|home|root|Users|tmp/\w)/?")
    texts = [source_root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for folder in (*ORDER, "docs", "bench"):
        texts += [
            p for p in (source_root / folder).rglob("*") if p.suffix in (".py", ".md", ".toml")
        ]
    found = [
        f"{path.relative_to(source_root)}: {match.group()}"
        for path in texts
        if (match := place.search(path.read_text()))
    ]
    assert not found, "\n".join(found)


PLUGIN_FACTS = {"distribution", "identity"}
"""Attributes that say which plugin something is."""


def test_no_plugin_is_told_from_the_others_by_its_name(trees: dict[str, ast.Module]) -> None:
    """What one plugin gets every plugin gets: no code compares who it is with a name."""
    named = [
        f"{path}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(
            isinstance(each, ast.Attribute) and each.attr in PLUGIN_FACTS for each in sides(node)
        )
        and any(isinstance(each, ast.Constant) and each.value for each in sides(node))
    ]
    assert named == []


def sides(node: ast.Compare) -> Iterator[ast.expr]:
    """What is compared; the items of a tuple, a list or a set too."""
    for side in (node.left, *node.comparators):
        yield from side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
