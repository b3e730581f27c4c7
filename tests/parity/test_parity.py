"""The same tokens and the same logits as transformers, from the same files, in the same run.

Nothing is stored: transformers computes its side each time. The real server is asked over HTTP;
logits come from the engine's own runner, in a process of its own (``teacher_forced.py``).
``--parity-fraction`` says how many of the hundred prompts are used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer
from parity import TIE, Expected, ask, make_prompt, most_ties, run_script, ties_used

TESTS = Path(__file__).parents[1]
NUM_PROMPTS = 100
NUM_TOKENS = 64
MAX_PROMPT_LEN = 400
MAX_LOGIT_DIFFERENCE = 2e-3
BF16_WORSE = 1.25
BF16_GAP = 0.5

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def prompts(request: pytest.FixtureRequest, smollm2_f32: Path) -> list[list[int]]:
    """Lengths from 1 to 400; in turn a piece of running text and random tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_f32 / "tokenizer.json"))
    passage = tokenizer.encode((Path(__file__).parent / "passage.txt").read_text()).ids
    assert len(passage) > MAX_PROMPT_LEN
    chosen = [
        make_prompt(passage, at, 1 + round(at * (MAX_PROMPT_LEN - 1) / (NUM_PROMPTS - 1)))
        for at in range(NUM_PROMPTS)
    ]
    count = max(1, round(NUM_PROMPTS * request.config.getoption("--parity-fraction")))
    step = (NUM_PROMPTS - 1) / max(1, count - 1)
    return [chosen[round(at * step)] for at in range(count)]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]], smollm2_f32: Path, tmp_path_factory: Any) -> list[Expected]:
    """Computed in a process of its own, so that its memory is gone before servers start."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "prompts.json").write_text(json.dumps(prompts))
    run_script(
        TESTS / "support" / "greedy_reference.py",
        str(smollm2_f32),
        str(folder / "prompts.json"),
        str(NUM_TOKENS),
        str(folder / "expected.json"),
    )
    found = json.loads((folder / "expected.json").read_text())
    return [Expected(prompt, **one) for prompt, one in zip(prompts, found, strict=True)]


def args_for(model: Path) -> list[str]:
    args = [str(model), "--served-model-name", "m", "--dtype", "float32"]
    return [*args, "--kv-cache-memory-bytes", str(1 << 30), "--max-model-len", "1024"]


@pytest.fixture(scope="module")
def served(prompts: list[list[int]], smollm2_f32: Path) -> dict[str, list[list[int]]]:
    with RunningServer(args_for(smollm2_f32)) as server:
        return {
            "alone": ask(server, prompts, 1, NUM_TOKENS),
            "32 at once": ask(server, prompts, 32, NUM_TOKENS),
        }


def test_greedy_tokens_are_transformers(
    expected: list[Expected], served: dict[str, list[list[int]]], capsys: pytest.CaptureFixture[str]
) -> None:
    used = {}
    for how, got in served.items():
        for number, position in ties_used(expected, got):
            used[number] = f"prompt {number}, token {position}, {how}"
    with capsys.disabled():
        print(f"\nparity: {len(expected)} prompts x {NUM_TOKENS} greedy tokens, float32")
        print(f"  equal, alone and 32 at once: {len(expected) - len(used)}")
        print(f"  equal up to a tie below {TIE:g}: {len(used)} {sorted(used.values())}")
    assert len(used) <= most_ties(expected)


def test_the_gguf_file_gives_the_folders_tokens(
    expected: list[Expected], prompts: list[list[int]], smollm2_gguf: Path
) -> None:
    with RunningServer(args_for(smollm2_gguf)) as server:
        got = ask(server, prompts, 32, NUM_TOKENS)
    used = list(ties_used(expected, got))
    assert len(used) <= most_ties(expected), used


def test_logits_under_the_same_tokens(
    expected: list[Expected],
    smollm2_f32: Path,
    smollm2_bf16: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sequences = [one.prompt + one.tokens for one in expected]
    (tmp_path / "sequences.json").write_text(json.dumps(sequences))
    found = json.loads(
        run_script(
            TESTS / "parity" / "teacher_forced.py",
            str(smollm2_f32),
            str(smollm2_bf16),
            str(tmp_path / "sequences.json"),
        ).splitlines()[-1]
    )
    positions = sum(len(sequence) for sequence in sequences)
    assert found["positions"] == positions
    with capsys.disabled():
        print(f"\nparity: logits at {positions} positions, fed transformers' tokens")
        print(f"  float32: largest difference {found['f32_max_difference']:.3g}")
        print(
            f"  bfloat16: best token unlike float32's: ours {found['bf16_ours']}, "
            f"transformers {found['bf16_theirs']}; widest gap of ours {found['bf16_gap']:.3g}"
        )
    assert found["f32_max_difference"] <= MAX_LOGIT_DIFFERENCE
    assert found["bf16_ours"] <= BF16_WORSE * found["bf16_theirs"]
    assert found["bf16_gap"] <= BF16_GAP
