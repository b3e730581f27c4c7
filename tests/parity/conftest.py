"""What the comparisons of a run came to, told at its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parity import Expected, most_ties, ties_used

CELLS = pytest.StashKey[list[tuple[str, str, int, int]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELLS] = []


@pytest.fixture
def compare(
    request: pytest.FixtureRequest,
) -> Callable[[str, str, list[Expected], list[list[int]]], None]:
    """``compare(model, mode, expected, got)``: hold tokens to the rule, and enter the cell."""

    def enter(model: str, mode: str, expected: list[Expected], got: list[list[int]]) -> None:
        ties = len(list(ties_used(expected, got)))
        request.config.stash[CELLS].append((model, mode, len(expected), ties))
        assert ties <= most_ties(expected), f"{ties} of {len(expected)} prompts end in a tie"

    return enter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cells = terminalreporter.config.stash[CELLS]
    if not cells:
        return
    terminalreporter.section("parity with transformers, greedy tokens in float32")
    wide = max(len(model) for model, *_ in cells)
    for model, mode, prompts, ties in cells:
        terminalreporter.write_line(
            f"{model:{wide}}  {mode:34}{prompts:4} prompts {prompts - ties:4} equal {ties:3} ties"
        )
