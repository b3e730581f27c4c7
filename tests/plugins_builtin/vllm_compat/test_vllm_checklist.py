"""Each rule that authors of vLLM plugins rely on is shown by a test, or the page says how it is."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
RULES = TESTS / "support" / "vllm_checklist.toml"
_ROW = re.compile(r"^\| (\d+(?:, \d+)*) \| .+ \|$", re.MULTILINE)


def rules() -> dict[int, str]:
    sections = tomllib.loads(RULES.read_text(encoding="utf-8")).values()
    return {int(number): text for section in sections for number, text in section.items()}


def shown_in(path: Path) -> Iterator[tuple[int, str]]:
    """The numbers in the marks of one file's tests."""
    text = path.read_text(encoding="utf-8")
    if ".checklist(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "checklist"
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: not a number"
                yield argument.value, f"{path}:{node.lineno}"


def told_on(page: Path) -> set[int]:
    rows = _ROW.findall(page.read_text(encoding="utf-8"))
    return {int(number) for row in rows for number in row.split(", ")}


def test_every_rule_is_shown_or_told(source_root: Path) -> None:
    known = rules()
    assert sorted(known) == list(range(1, len(known) + 1))
    marked: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for number, where in shown_in(path):
            marked.setdefault(number, []).append(where)
    told = told_on(source_root / "docs" / "vllm-plugins.md")
    unknown = {number: marked.get(number) for number in (set(marked) | told) - set(known)}
    assert unknown == {}, "there is no such rule"
    missing = {number: known[number] for number in sorted(set(known) - set(marked) - told)}
    assert missing == {}, "mark a test that shows it, or say how it is in docs/vllm-plugins.md"
