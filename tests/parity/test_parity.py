"""The same tokens and the same logits as transformers, from the same files, in the same run.

Nothing is stored: transformers computes its side each time. The real server is asked over HTTP;
logits come from the engine's own runner, in a process of its own (``teacher_forced.py``).
``--parity-fraction`` says how many of the hundred prompts are used.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, clean_environment

NUM_PROMPTS = 100
NUM_TOKENS = 64
MAX_PROMPT_LEN = 400
VOCAB = 49152
TIE = 1e-3
"""Two best logits nearer than this are a tie: float32 sums in another order may swap them."""
TIES_ALLOWED = 0.05
"""Share of the prompts that may end in a tie."""
MAX_LOGIT_DIFFERENCE = 2e-3
BF16_WORSE = 1.25
BF16_GAP = 0.5

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@dataclass(frozen=True)
class Expected:
    """Transformers' greedy continuation of one prompt."""

    prompt: list[int]
    tokens: list[int]
    gaps: list[float]
    """At each token, by how much the best logit exceeds the second."""


@pytest.fixture(scope="module")
def prompts(request: pytest.FixtureRequest, smollm2_f32: Path) -> list[list[int]]:
    """Lengths from 1 to 400; in turn a piece of running text and random tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_f32 / "tokenizer.json"))
    passage = tokenizer.encode((Path(__file__).parent / "passage.txt").read_text()).ids
    assert len(passage) > MAX_PROMPT_LEN
    chosen = []
    for at in range(NUM_PROMPTS):
        length = 1 + round(at * (MAX_PROMPT_LEN - 1) / (NUM_PROMPTS - 1))
        if at % 2:
            draw = random.Random(f"parity/{at}")
            chosen.append([draw.randrange(300, VOCAB) for _ in range(length)])
        else:
            start = (at * 37) % len(passage)
            chosen.append((passage + passage)[start : start + length])
    count = max(1, round(NUM_PROMPTS * request.config.getoption("--parity-fraction")))
    step = (NUM_PROMPTS - 1) / max(1, count - 1)
    return [chosen[round(at * step)] for at in range(count)]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]], smollm2_f32: Path, tmp_path_factory: Any) -> list[Expected]:
    """Computed in a process of its own, so that its memory is gone before servers start."""
    folder = tmp_path_factory.mktemp("expected")
    (folder / "prompts.json").write_text(json.dumps(prompts))
    run_script(
        "greedy_reference.py",
        str(smollm2_f32),
        str(folder / "prompts.json"),
        str(NUM_TOKENS),
        str(folder / "expected.json"),
    )
    found = json.loads((folder / "expected.json").read_text())
    return [Expected(prompt, **one) for prompt, one in zip(prompts, found, strict=True)]


def run_script(name: str, *args: str) -> str:
    script = Path(__file__).parent / name
    env = clean_environment({"PYTHONWARNINGS": "default"})
    done = subprocess.run(
        [sys.executable, "-P", str(script), *args],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def args_for(model: Path) -> list[str]:
    args = [str(model), "--served-model-name", "m", "--dtype", "float32"]
    return [*args, "--kv-cache-memory-bytes", str(1 << 30), "--max-model-len", "1024"]


def ask(server: RunningServer, prompts: list[list[int]], at_once: int) -> list[list[int]]:
    """The server's greedy tokens for each prompt, so many requests at a time."""

    async def run() -> list[list[int]]:
        gate = asyncio.Semaphore(at_once)
        async with server.async_client(timeout=600) as client:

            async def one(prompt: list[int]) -> list[int]:
                body = {
                    "model": "m",
                    "prompt": prompt,
                    "max_tokens": NUM_TOKENS,
                    "temperature": 0,
                    "ignore_eos": True,
                    "return_token_ids": True,
                }
                async with gate:
                    reply = await client.post("/v1/completions", json=body)
                assert reply.status_code == 200, reply.text
                return list(reply.json()["choices"][0]["token_ids"])

            return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def served(prompts: list[list[int]], smollm2_f32: Path) -> dict[str, list[list[int]]]:
    with RunningServer(args_for(smollm2_f32)) as server:
        return {"alone": ask(server, prompts, 1), "32 at once": ask(server, prompts, 32)}


def ties_used(expected: list[Expected], got: list[list[int]]) -> Iterator[tuple[int, int]]:
    """``(prompt, position)`` where a tie was decided the other way. Any other difference fails."""
    for number, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert len(have) == NUM_TOKENS
        for position, (right, ours) in enumerate(zip(want.tokens, have, strict=True)):
            if right == ours:
                continue
            gap = want.gaps[position]
            assert gap < TIE, (
                f"prompt {number} ({len(want.prompt)} tokens) differs at {position}: {ours} in "
                f"place of {right}, where the two best logits are {gap:.4g} apart"
            )
            yield number, position
            break


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
    assert len(used) <= math.ceil(TIES_ALLOWED * len(expected))


def test_the_gguf_file_gives_the_folders_tokens(
    expected: list[Expected], prompts: list[list[int]], smollm2_gguf: Path
) -> None:
    with RunningServer(args_for(smollm2_gguf)) as server:
        got = ask(server, prompts, 32)
    used = list(ties_used(expected, got))
    assert len(used) <= math.ceil(TIES_ALLOWED * len(expected)), used


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
            "teacher_forced.py",
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
