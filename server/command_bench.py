"""``server bench``: fixed workloads against any OpenAI-compatible completions server.

A table for people as each workload ends, then one line of JSON for machines. Prompts are token
ids, so that every server sees the same tokens; tokens are counted by the server's own ``usage``.
Every prompt of every round is another one, so that only the workload ``prefix`` can profit from
reuse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from hookserve.engine.errors import UsageError

from .http_lines import Address, ReplyError, model_names, request

WORKLOADS: dict[str, str] = {
    "single": "1 stream, 128 prompt tokens, 128 generated",
    "batch8": "8 streams, 128 prompt tokens, 128 generated each",
    "batch32": "32 streams, 128 prompt tokens, 128 generated each",
    "prefill": "8 requests in turn, 1024 prompt tokens, 1 generated",
    "prefix": "16 requests in turn sharing 1024 prompt tokens, 8 generated",
    "mixed": "48 requests in 16 streams, 16 to 768 prompt tokens, 16 to 160 generated",
}
FIRST_TOKEN_ID = 300
"""Lower ids are often special tokens or single bytes."""


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True)
class Timing:
    """One completion, in seconds from the moment of sending."""

    ttft: float
    latency: float
    num_prompt_tokens: int
    num_output_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--model", metavar="NAME", help="default: the first that it lists")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument(
        "--workloads",
        metavar="NAME,...",
        default=",".join(WORKLOADS),
        help="default: all of them",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        metavar="N",
        help="rounds of each workload; the one of median time counts (default: %(default)s)",
    )
    parser.add_argument(
        "--first-round",
        type=int,
        default=0,
        metavar="N",
        help="number of the first round; another number gives other prompts",
    )
    parser.add_argument(
        "--max-token-id",
        type=int,
        default=40000,
        metavar="N",
        help="prompts hold ids below this; at most the model's vocabulary (default: %(default)s)",
    )
    parser.usage = "server bench [flags]"
    parser.epilog = "Workloads: " + "; ".join(f"{k}: {v}" for k, v in WORKLOADS.items()) + "."


def run(found: argparse.Namespace) -> int:
    names = [name.strip() for name in found.workloads.split(",") if name.strip()]
    for name in names:
        if name not in WORKLOADS:
            raise UsageError(f"unknown workload {name!r}; expected some of {', '.join(WORKLOADS)}")
    if found.rounds < 1 or found.max_token_id <= FIRST_TOKEN_ID or not names:
        raise UsageError(
            f"expected at least one workload, --rounds of at least 1 and --max-token-id above "
            f"{FIRST_TOKEN_ID}"
        )
    try:
        result = asyncio.run(_bench(found, names))
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result))
    return 0


def make_jobs(name: str, round_number: int, max_token_id: int) -> tuple[list[Job], int]:
    """The requests of one round of a workload, and how many run at once."""

    def ids(count: int, which: object) -> list[int]:
        drawn = random.Random(f"{name}:{round_number}:{which}")
        return [drawn.randrange(FIRST_TOKEN_ID, max_token_id) for _ in range(count)]

    if name == "prefill":
        return [Job(ids(1024, i), 1) for i in range(8)], 1
    if name == "prefix":
        shared = ids(1024, "shared")
        return [Job(shared + ids(16, i), 8) for i in range(16)], 1
    if name == "mixed":
        # Lengths are the same in every round's place for every server; only ids differ.
        lengths = random.Random(f"lengths:{round_number}")
        sizes = [(lengths.randint(16, 768), lengths.randint(16, 160)) for _ in range(48)]
        return [Job(ids(prompt, i), out) for i, (prompt, out) in enumerate(sizes)], 16
    width = {"single": 1, "batch8": 8, "batch32": 32}[name]
    return [Job(ids(128, i), 128) for i in range(width)], width


async def complete(address: Address, model: str, job: Job, api_key: str | None) -> Timing:
    """Stream one completion and time it.

    Raises:
        ReplyError: an error of the server, or a reply without a token.
    """
    body = {
        "model": model,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    first = last = None
    usage: dict[str, Any] = {}
    num_events = 0
    async with request(address, "POST", "/v1/completions", body, api_key=api_key) as reply:
        async for event in reply.events():
            usage = event.get("usage") or usage
            choices = event.get("choices")
            if choices and (choices[0].get("text") or choices[0].get("token_ids")):
                last = time.perf_counter() - start
                first = last if first is None else first
                num_events += 1
    if first is None or last is None:
        raise ReplyError("the server ended a stream without a token")
    return Timing(
        ttft=first,
        latency=last,
        num_prompt_tokens=usage.get("prompt_tokens", len(job.prompt)),
        num_output_tokens=usage.get("completion_tokens", num_events),
    )


async def run_jobs(
    address: Address, model: str, jobs: Sequence[Job], width: int, api_key: str | None
) -> dict[str, Any]:
    """Run the jobs, ``width`` at once, and sum them up."""
    gate = asyncio.Semaphore(width)

    async def one(job: Job) -> Timing:
        async with gate:
            return await complete(address, model, job, api_key)

    start = time.perf_counter()
    timings = await asyncio.gather(*(one(job) for job in jobs))
    return summarize(timings, time.perf_counter() - start)


def summarize(timings: Sequence[Timing], wall_s: float) -> dict[str, Any]:
    num_out = sum(t.num_output_tokens for t in timings)
    num_in = sum(t.num_prompt_tokens for t in timings)
    # Time per output token leaves the first one out: it is the prompt's.
    tpot = [
        (t.latency - t.ttft) / (t.num_output_tokens - 1) for t in timings if t.num_output_tokens > 1
    ]
    return {
        "requests": len(timings),
        "wall_s": round(wall_s, 3),
        "out_tokens": num_out,
        "in_tokens": num_in,
        "out_tok_s": round(num_out / wall_s, 2),
        "in_tok_s": round(num_in / wall_s, 2),
        "ttft_ms_p50": round(1e3 * median(t.ttft for t in timings), 1),
        "ttft_ms_max": round(1e3 * max(t.ttft for t in timings), 1),
        "tpot_ms_p50": round(1e3 * median(tpot), 2) if tpot else None,
        "latency_s_mean": round(fmean(t.latency for t in timings), 3),
    }


async def _bench(found: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    address = Address.parse(found.url)
    model = found.model or (await model_names(address, found.api_key))[0]
    print(f"{address}, model {model}, median of {found.rounds} rounds", file=sys.stderr)
    await _warm_up(address, model, found)
    print(table_head())
    result: dict[str, Any] = {}
    for name in names:
        rounds = []
        for number in range(found.first_round, found.first_round + found.rounds):
            jobs, width = make_jobs(name, number, found.max_token_id)
            rounds.append(await run_jobs(address, model, jobs, width, found.api_key))
        rounds.sort(key=lambda figures: figures["wall_s"])
        result[name] = rounds[len(rounds) // 2]
        print(table_row(name, result[name]), flush=True)
    return result


async def _warm_up(address: Address, model: str, found: argparse.Namespace) -> None:
    """Let a server do whatever it does only once, alone and with eight at a time."""
    for width in (1, 8):
        jobs = [
            Job(
                random.Random(f"warm:{width}:{i}").choices(
                    range(FIRST_TOKEN_ID, found.max_token_id), k=64
                ),
                16,
            )
            for i in range(width)
        ]
        await run_jobs(address, model, jobs, width, found.api_key)


_COLUMNS = (
    ("out tok/s", "out_tok_s"),
    ("in tok/s", "in_tok_s"),
    ("TTFT p50 ms", "ttft_ms_p50"),
    ("TTFT max ms", "ttft_ms_max"),
    ("TPOT p50 ms", "tpot_ms_p50"),
    ("mean s", "latency_s_mean"),
    ("wall s", "wall_s"),
)


def table_head() -> str:
    return "workload  " + "  ".join(f"{title:>11}" for title, _ in _COLUMNS)


def table_row(name: str, figures: dict[str, Any]) -> str:
    cells = ["-" if figures[key] is None else str(figures[key]) for _, key in _COLUMNS]
    return f"{name:<10}" + "  ".join(f"{cell:>11}" for cell in cells)
