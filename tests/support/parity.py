"""The rule of the parity checks, and how a server is asked: what their files share.

Greedy tokens are transformers', except from a position on at which its two best logits are so near
that sums in another order may swap them. Those are counted, and few are allowed.
"""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import RunningServer, clean_environment

SMOLLM2_VOCAB = 49152
TIE = 1e-3
"""Two best logits nearer than this are a tie."""
TIES_ALLOWED = 0.05
"""Share of the prompts that may end in a tie."""


@dataclass(frozen=True)
class Expected:
    """Transformers' greedy continuation of one prompt."""

    prompt: list[int]
    tokens: list[int]
    gaps: list[float]
    """At each token, by how much the best logit exceeds the second."""


def make_prompt(passage: list[int], at: int, length: int) -> list[int]:
    """The prompt number ``at``: in turn a piece of running text and random tokens."""
    if at % 2:
        draw = random.Random(f"parity/{at}")
        return [draw.randrange(300, SMOLLM2_VOCAB) for _ in range(length)]
    start = (at * 37) % len(passage)
    return (passage * (1 + -(-length // len(passage))))[start : start + length]


def run_script(script: Path, *args: str) -> str:
    """Run a script in a process of its own; its stdout."""
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


def ask(
    server: RunningServer, prompts: list[list[int]], at_once: int, num_tokens: int
) -> list[list[int]]:
    """The greedy tokens of the server's model ``m`` for each prompt, so many at a time."""

    async def run() -> list[list[int]]:
        gate = asyncio.Semaphore(at_once)
        async with server.async_client(timeout=600) as client:

            async def one(prompt: list[int]) -> list[int]:
                body = {
                    "model": "m",
                    "prompt": prompt,
                    "max_tokens": num_tokens,
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


def ties_used(expected: list[Expected], got: list[list[int]]) -> Iterator[tuple[int, int]]:
    """``(prompt, position)`` where a tie was decided the other way. Any other difference fails."""
    for number, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert len(have) == len(want.tokens)
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


def most_ties(expected: list[Expected]) -> int:
    return math.ceil(TIES_ALLOWED * len(expected))
