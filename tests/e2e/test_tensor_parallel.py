"""Tensor parallelism in real processes: the tokens of one rank, each rank's share, and the ends.

What shows in no reply is asked of the ranks themselves, through an engine core in this process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fake_engine import make_request
from harness import RunningServer, command_line, process_parents, run_command, wait_until
from hookserve.engine import rank_watch
from hookserve.engine.errors import WorkerError
from offline_engine import OfflineEngine
from plugin_folder import install_plugin
from tiny_llama import LAYERS

Start = Callable[..., RunningServer]

TWO = ("--tensor-parallel-size", "2")
PROMPTS = [[(7 * n + 11 * at + at * at) % 250 for at in range(3 + 29 * n)] for n in range(4)]
NEW_TOKENS = 20
EMBEDDING = 1
"""All-reduces of a step that are no layer's. The head's parts are gathered."""


@pytest.fixture(scope="module")
def reference(tiny_llama: Path) -> list[list[int]]:
    """transformers' greedy tokens. The checkpoint is fit for comparing them: half of all choices
    are by more than 0.05."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    found, gaps = [], []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(NEW_TOKENS):
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits[0, -1]
            best = logits.topk(2).values
            gaps.append(float(best[0] - best[1]))
            ids.append(int(logits.argmax()))
        found.append(ids[len(prompt) :])
    assert sorted(gaps)[len(gaps) // 2] > 0.05
    return found


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[OfflineEngine]:
    options = {"tensor_parallel_size": 2, "worker_cls": "probe_worker:ProbeWorker"}
    with OfflineEngine(tiny_llama, **options) as engine:
        yield engine


# -- what each rank holds, sends and knows --------------------------------------------------------


def test_two_ranks_give_the_tokens_of_one_and_of_the_reference(
    engine: OfflineEngine, reference: list[list[int]]
) -> None:
    assert engine.generate(PROMPTS, NEW_TOKENS) == reference
    assert [engine.generate([prompt], NEW_TOKENS)[0] for prompt in PROMPTS] == reference


def test_each_rank_holds_its_part_of_the_weights(engine: OfflineEngine, tiny_llama: Path) -> None:
    stored = load_file(tiny_llama / "model.safetensors")
    whole = sum(tensor.nbytes for tensor in stored.values())
    held = [facts["weight_bytes"] for facts in engine.rpc("describe")]
    assert len(held) == 2
    assert all(0.4 * whole < each < 0.6 * whole for each in held), (held, whole)
    at = "model.layers.0.self_attn."
    q, k, v = (stored[f"{at}{name}_proj.weight"] for name in "qkv")
    for rank, part in enumerate(engine.rpc("own_tensor")):
        expected = [tensor.chunk(2)[rank] for tensor in (q, k, v)]
        assert torch.equal(part, torch.cat(expected))


def test_a_step_costs_two_all_reduces_a_layer(engine: OfflineEngine) -> None:
    before, steps = engine.rpc("num_collectives"), engine.core.num_steps
    engine.generate(PROMPTS[:2], 8)
    steps = engine.core.num_steps - steps
    assert steps == 8
    for old, new in zip(before, engine.rpc("num_collectives"), strict=True):
        assert new["all_reduces"] - old["all_reduces"] == steps * (2 * LAYERS + EMBEDDING)
        assert new["all_gathers"] - old["all_gathers"] == steps


def test_every_rank_draws_the_same_tokens(engine: OfflineEngine) -> None:
    """With seeds and without: what a rank drew is what it computes the next step with."""
    drawn = []
    for seed in (None, 5):
        for n, prompt in enumerate(PROMPTS):
            request = make_request(
                f"drawn-{seed}-{n}", prompt, max_tokens=50, temperature=1.5, seed=seed
            )
            engine.core.add_request(request)
        for _ in range(12):
            engine.core.step()
        first, second = engine.rpc("sequences")
        assert first == second
        drawn.append([ids[-11:] for ids in first.values()])
        engine.core.abort_requests(list(first))
        engine.core.step()
        assert engine.rpc("sequences") == [{}, {}]
    assert len({tuple(ids) for ids in drawn[0]}) == len(PROMPTS), "drawn, not the best ones"
    one, other = engine.rpc("next_random")
    assert one == other


def test_the_threads_and_the_memory_are_shared_out(engine: OfflineEngine) -> None:
    threads = {facts["num_threads"] for facts in engine.rpc("describe")}
    assert threads == {max(1, len(os.sched_getaffinity(0)) // 2)}
    assert all("shared by 2 ranks" in facts["threads_reason"] for facts in engine.rpc("describe"))
    blocks = engine.core.scheduler.kv_cache.pool.num_blocks
    (one, other) = engine.rpc("get_kv_cache_block_bytes")
    # A key and a value of one of the two key heads, in float32, for 16 tokens of two layers.
    assert one == other == 2 * 16 * 16 * 4 * LAYERS
    assert engine.core.kv_cache_bytes == blocks * (one + other)


def test_without_rank_1s_part_there_are_other_tokens(
    engine: OfflineEngine, reference: list[list[int]]
) -> None:
    """The last test of this engine's tokens."""
    assert engine.generate(PROMPTS, NEW_TOKENS) == reference
    assert engine.rpc("zero_shard", 1) == [0, 2 + 4 * LAYERS]
    engine.core.scheduler.reset_prefix_cache()
    assert engine.generate(PROMPTS, NEW_TOKENS) != reference


def test_a_rank_that_waits_for_others_who_never_come_ends_with_a_sentence(
    engine: OfflineEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of this engine. The next call must not be what the rank has waited for: its
    numbers would be added to others."""
    monkeypatch.setattr(rank_watch, "IN_VAIN_S", 1.0)
    with pytest.raises(WorkerError, match=r"^worker 0 raised LookupError: nothing to add"):
        engine.rpc("enter_alone", 1)
    told = (
        r"worker 0 is through, worker 1 in all_reduce \(called at \S+probe_worker\.py:\d+\); every"
    )
    with pytest.raises(WorkerError, match=told):
        engine.rpc("num_collectives")
    with pytest.raises(WorkerError, match="the workers have ended"):
        engine.rpc("num_collectives")


# -- processes ------------------------------------------------------------------------------------


def roles(server: RunningServer) -> dict[str, list[int]]:
    """Process ids by what the process is, as ``ps`` shows it."""
    found: dict[str, list[int]] = {"front": [], "engine": [], "worker": []}
    for pid in sorted(server.pids()):
        line = command_line(pid)
        role = "worker" if "hookserve.engine.worker_process" in line else "front"
        found["engine" if "hookserve.engine.process" in line else role].append(pid)
    return found


@pytest.mark.parametrize("victim", ["worker", "engine", "front"])
def test_whoever_is_killed_takes_all_others_along(
    victim: str, running_server: Start, tiny_llama: Path, reference: list[list[int]]
) -> None:
    server = running_server([str(tiny_llama), *TWO])
    found = roles(server)
    assert {role: len(pids) for role, pids in found.items()} == {
        "front": 1,
        "engine": 1,
        "worker": 2,
    }
    (engine,) = found["engine"]
    assert all(process_parents()[worker] == engine for worker in found["worker"])
    for pid, has_torch in ((engine, False), *((worker, True) for worker in found["worker"])):
        assert ("libtorch" in Path(f"/proc/{pid}/maps").read_text()) == has_torch
    body = {"prompt": PROMPTS[1], "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    reply = server.post("/v1/completions", {**body, "return_token_ids": True}).json()
    assert reply["choices"][0]["token_ids"] == reference[1]
    os.kill(found[victim][-1], signal.SIGKILL)
    killed = time.monotonic()
    behind = {engine, *found["worker"]}
    wait_until(lambda: not behind & process_parents().keys(), 5, "the end of engine and workers")
    assert time.monotonic() - killed < 1.0
    if victim == "front":
        return
    assert server.wait_exit(5) == 70, server.output()
    named = f"worker 1 (pid {found['worker'][1]})" if victim == "worker" else f"(pid {engine})"
    assert f"{named} was killed by SIGKILL" in server.stderr
    assert "Traceback" not in server.stderr


FAILS_IN_THE_WORKER = """
from hookserve.hookspecs import Endpoint, hookimpl
from starlette.responses import PlainTextResponse
from starlette.routing import Route


class Routes:
    def routes(self):
        return [Route("/broken", lambda request: PlainTextResponse("reached"))]


@hookimpl
def endpoint():
    return Endpoint("broken", Routes)


@hookimpl
def process_started(roles):
    if "worker" in roles:
        raise OSError("not in a worker")
"""


def test_a_plugin_that_fails_in_a_worker_alone_is_out_everywhere(
    tmp_path: Path, tiny_llama: Path, running_server: Start
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_plugin(site, "broken-toy", {"broken_toy": FAILS_IN_THE_WORKER})
    server = running_server(
        [str(tiny_llama), *TWO, "--enable-endpoints", "broken_toy"], env={"PYTHONPATH": str(site)}
    )
    assert server.post("/v1/completions", {"prompt": [1], "max_tokens": 1}).status_code == 200
    assert server.status("/broken") == 404
    identity = "broken-toy:hookserve:broken_toy"
    processes: dict[str, Any] = server.get("/v1/plugins").json()["processes"]
    assert list(processes) == ["front", "engine", "worker 0", "worker 1"]
    for process in processes:
        (report,) = [each for each in processes[process] if each["identity"] == identity]
        assert "not in a worker" in str(report), report
    assert f"plugin {identity} failed in the worker process" in server.stderr
    server.signal(signal.SIGTERM)
    assert server.wait_exit(15) == 0, server.output()
    assert "by force" not in server.stderr


def test_heads_that_two_ranks_cannot_share_are_refused_before_anything_starts(
    smollm2_gguf: Path,
) -> None:
    done = run_command(["run", str(smollm2_gguf), *TWO])
    assert done.returncode == 78, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert "--tensor-parallel-size 2" in line
    assert "9 attention heads and 3 key heads and inner width 1536" in line
    assert line.endswith("1, 3")
