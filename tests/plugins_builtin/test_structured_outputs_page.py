"""``docs/structured_outputs.md`` names the limits that the code has, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hookserve.engine import grammar_compiler, structured_outputs
from hookserve.plugins_builtin import llguidance_backend


@pytest.fixture(scope="module")
def page(source_root: Path) -> str:
    return (source_root / "docs" / "structured_outputs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        (r"a schema, or all choices together \| (\d+) KiB", structured_outputs.MAX_SPEC_BYTES),
        (r"a schema (\d+) levels deep", structured_outputs.MAX_DEPTH),
        (r"\| choices \| (\d+) \|", structured_outputs.MAX_CHOICES),
        (r"a regular expression \| (\d+) KiB", structured_outputs.MAX_REGEX_BYTES),
        (r"a grammar \| (\d+) KiB", llguidance_backend.MAX_GRAMMAR_BYTES),
        (r"GBNF: (\d+) KiB", llguidance_backend.MAX_GBNF_BYTES),
        (r"and (\d+) rules", llguidance_backend.MAX_RULES),
        (r"in the engine \| (\d+) s", grammar_compiler.MAX_WAIT_S),
        (r"that are kept \| (\d+) MiB", grammar_compiler.MAX_CACHE_BYTES),
        (r"for one token \| (\d+) ms", 1000 * llguidance_backend.MAX_MASK_S),
    ],
)
def test_the_limits_are_the_codes(page: str, pattern: str, limit: float) -> None:
    found = re.search(pattern, page)
    assert found is not None
    unit = {"KiB": 2**10, "MiB": 2**20}.get(found[0].rpartition(" ")[2], 1)
    assert int(found[1]) * unit == limit


def test_the_offline_example_chooses(
    page: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small model in the place of the default one."""
    import hookserve.engine

    whole = hookserve.engine.LLM
    made = []

    def make_small() -> hookserve.engine.LLM:
        made.append(whole(str(tiny_llama)))
        return made[0]

    monkeypatch.setattr(hookserve.engine, "LLM", make_small)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for block in blocks:
        compile(block, "the page", "exec")
    try:
        exec(blocks[1], {})
    finally:
        made[0].shutdown()
    assert capsys.readouterr().out.split() in (["yes"], ["no"])
