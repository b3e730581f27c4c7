"""The same greedy tokens as transformers in every mode of the engine, by the rule of ``parity``.

The real model is asked through the real server. Small random checkpoints of every architecture and
rotation go through the engine's core, with one rank and with two; the modes differ by their
scheduler alone, so model and workers stay while one scheduler follows another. Each cell shows by
what was counted that its mode happened. Below ``--parity-fraction=1`` a fixed part of the cells
runs, with fewer and shorter prompts of the real model.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from harness import RunningServer
from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest, StepOutputs
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap
from parity import Expected, ask, make_prompt, run_script
from tiny_models import TINY_MODELS, load_reference, write_tiny_model

TESTS = Path(__file__).parents[1]
Compare = Callable[[str, str, list[Expected], list[list[int]]], None]

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def is_whole(config: pytest.Config) -> bool:
    return bool(config.getoption("--parity-fraction") == 1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All cells, or the fixed part of them."""
    whole = is_whole(metafunc.config)
    if "mode" in metafunc.fixturenames:
        metafunc.parametrize("mode", SERVED_MODES if whole else FEW_SERVED_MODES)
    if "modes" in metafunc.fixturenames:
        names, every = list(TINY_MODELS), tuple(TINY_MODES)
        cells = [(name, ranks, every) for name in names for ranks in RANKS]
        if not whole:
            # Every third model in one mode, which differs from one to the next.
            few = enumerate(names[::3])
            cells = [(name, 1, (every[at % len(every)],)) for at, name in few]
            cells.append(("gemma2", 2, ("chunks of 64", "preempted")))
        ids = [f"{name}, TP {ranks}" for name, ranks, _ in cells]
        metafunc.parametrize(("name", "ranks", "modes"), cells, ids=ids)


# -- the real model, over HTTP --------------------------------------------------------------------

LENGTHS = (1, 16, 48, 100, 150, 200, 250, 300, 350, 400, 464, 700, 900, 1100, 1300, 1500)
FEW_LENGTHS = (1, 150, 300)
SHORT = 400
"""Longest prompt where blocks are few: one that takes nearly all would have no neighbours."""
SMALL_BLOCK = 4


@pytest.fixture(scope="module")
def expected(
    request: pytest.FixtureRequest, smollm2_f32: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Expected]:
    """Computed once, in a process of its own, so that its memory is gone before servers start."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(smollm2_f32 / "tokenizer.json"))
    passage = tokenizer.encode((Path(__file__).parent / "passage.txt").read_text()).ids
    lengths, num_tokens = (LENGTHS, 32) if is_whole(request.config) else (FEW_LENGTHS, 16)
    prompts = [make_prompt(passage, at, length) for at, length in enumerate(lengths)]
    folder = tmp_path_factory.mktemp("matrix")
    given, found = folder / "prompts.json", folder / "expected.json"
    given.write_text(json.dumps(prompts))
    script = TESTS / "support" / "greedy_reference.py"
    run_script(script, str(smollm2_f32), str(given), str(num_tokens), str(found))
    return [
        Expected(prompt, **one)
        for prompt, one in zip(prompts, json.loads(found.read_text()), strict=True)
    ]


def steps_of_at_most(server: RunningServer, num_tokens: int) -> tuple[int, int]:
    """How many steps had at most so many tokens, and how many there were."""
    name = "hookserve_iteration_tokens_total"
    lines = server.get("/metrics").text.splitlines()
    bucket = [line for line in lines if line.startswith(f"{name}_bucket")]
    (small,) = [line for line in bucket if f'le="{num_tokens}.0"' in line]
    return int(float(small.rsplit(" ", 1)[1])), int(server.metric(f"{name}_count"))


def serve(model: Path, expected: list[Expected], *args: str) -> RunningServer:
    length = max(len(one.prompt) + len(one.tokens) for one in expected)
    common = ["--served-model-name", "m", "--dtype", "float32", "--max-model-len", str(length)]
    return RunningServer([str(model), *common, *args])


def prompts_of(expected: list[Expected]) -> list[list[int]]:
    return [one.prompt for one in expected]


def in_chunks(model: Path, expected: list[Expected]) -> list[list[int]]:
    num_tokens = len(expected[0].tokens)
    args = ["--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--no-enable-prefix-caching"]
    with serve(model, expected, *args) as server:
        alone = ask(server, prompts_of(expected), 1, num_tokens)
        chunks = sum(-(-len(one.prompt) // 64) for one in expected)
        steps = chunks + len(expected) * (num_tokens - 1)
        assert steps_of_at_most(server, 64) == (steps, steps)
        together = ask(server, prompts_of(expected), 32, num_tokens)
        small, steps = steps_of_at_most(server, 64)
        assert small == steps
    return alone + together


def preempted(model: Path, expected: list[Expected]) -> list[list[int]]:
    num_tokens = len(expected[0].tokens)
    # All prompts fit, and not what they grow by.
    blocks = sum(2 - (-len(one.prompt) // SMALL_BLOCK) for one in expected)
    args = ["--block-size", str(SMALL_BLOCK), "--num-gpu-blocks-override", str(blocks)]
    with serve(model, expected, *args) as server:
        got = ask(server, prompts_of(expected), 32, num_tokens)
        assert server.metric("hookserve_num_preemptions_total") > 0
    return got


def cached(model: Path, expected: list[Expected]) -> list[list[int]]:
    num_tokens = len(expected[0].tokens)
    with serve(model, expected) as server:
        first = ask(server, prompts_of(expected), 1, num_tokens)
        before = server.metric("hookserve_prefix_cache_hits_total")
        second = ask(server, prompts_of(expected), 32, num_tokens)
        hits = server.metric("hookserve_prefix_cache_hits_total") - before
    # All full blocks but the one that holds a prompt's last token.
    assert hits == sum((len(one.prompt) - 1) // 16 * 16 for one in expected)
    return first + second


def eager_without_cache(model: Path, expected: list[Expected]) -> list[list[int]]:
    num_tokens = len(expected[0].tokens)
    with serve(model, expected, "--enforce-eager", "--no-enable-prefix-caching") as server:
        got = ask(server, prompts_of(expected) * 2, 32, num_tokens)
        assert server.metric("hookserve_prefix_cache_hits_total") == 0
    return got


SERVED_MODES: dict[str, Callable[[Path, list[Expected]], list[list[int]]]] = {
    "alone, then from the prefix cache": cached,
    "32 at once, eager, no prefix cache": eager_without_cache,
    "chunks of 64": in_chunks,
    "preempted": preempted,
}
FEW_SERVED_MODES = ("chunks of 64",)


def test_the_real_model(
    mode: str, expected: list[Expected], smollm2_f32: Path, compare: Compare
) -> None:
    if mode == "preempted":
        expected = [one for one in expected if len(one.prompt) <= SHORT]
    got = SERVED_MODES[mode](smollm2_f32, expected)
    times = len(got) // len(expected)
    compare("SmolLM2-135M", mode, expected * times, got)


# -- small random models, in this process ---------------------------------------------------------

MAX_LEN = 1600
NEW_TOKENS = 24
BLOCK = 16
TINY_LENGTHS = (1, 16, 17, 33, 64, 100, 200, 1500)
RANKS = (1, 2)


@dataclass(frozen=True)
class Mode:
    budget: int = 2048
    at_once: bool = True
    prefix_caching: bool = False
    turns: int = 1
    is_scarce: bool = False
    """So few blocks that a request must be preempted."""


TINY_MODES = {
    "alone": Mode(at_once=False),
    "together": Mode(),
    "prefix cache": Mode(prefix_caching=True, turns=2),
    "no prefix cache": Mode(turns=2),
    "chunks of 64": Mode(budget=64),
    "preempted": Mode(is_scarce=True),
    "preempted, prefix cache": Mode(is_scarce=True, prefix_caching=True),
}


@dataclass
class Trace:
    """What happened in one mode."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    most_running: int = 0
    prompt_tokens: int = 0
    prompt_steps: int = 0
    most_prompt_tokens: int = 0
    """In one step."""
    preemptions: int = 0
    hits: int = 0

    def add(self, report: StepOutputs) -> None:
        for output in report.outputs:
            assert output.error is None, output
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
        stats = report.scheduler_stats
        self.most_running = max(self.most_running, len(report.outputs))
        self.prompt_tokens += stats.num_prompt_tokens
        self.prompt_steps += stats.num_prompt_tokens > 0
        self.most_prompt_tokens = max(self.most_prompt_tokens, stats.num_prompt_tokens)
        self.preemptions += stats.num_preempted_reqs
        self.hits += stats.prefix_cache_hits


class TinyEngine:
    """One model with its workers; every mode is run with a scheduler of its own."""

    def __init__(self, folder: Path, ranks: int, host: Any) -> None:
        args = EngineArgs(
            model=str(folder),
            dtype="float32",
            max_model_len=MAX_LEN,
            block_size=BLOCK,
            tensor_parallel_size=ranks,
        )
        self.config = args.to_engine_config(host)
        self.core = EngineCore(VllmConfig.from_engine_config(self.config), host)

    def run(self, mode: Mode, prompts: list[list[int]]) -> Trace:
        self._follow(mode, prompts)
        trace = Trace()
        params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        for turn in range(mode.turns):
            for number, prompt in enumerate(prompts):
                self.core.add_request(AddRequest(f"{turn}/{number}", prompt, params, time.time()))
                if not mode.at_once:
                    self._finish(trace)
            self._finish(trace)
        return trace

    def _follow(self, mode: Mode, prompts: list[list[int]]) -> None:
        """Put a scheduler of this mode in the place of the last one."""
        before = self.core.scheduler
        num_blocks = before.kv_cache.pool.num_blocks
        if mode.is_scarce:
            # All prompts fit, and not what they grow by.
            num_blocks = sum(1 - (-len(prompt) // BLOCK) for prompt in prompts)
        config = msgspec.structs.replace(
            self.config,
            scheduler=msgspec.structs.replace(
                self.config.scheduler, max_num_batched_tokens=mode.budget
            ),
            cache=msgspec.structs.replace(
                self.config.cache, enable_prefix_caching=mode.prefix_caching
            ),
        )
        self.core.scheduler = Scheduler(VllmConfig.from_engine_config(config), num_blocks, BLOCK)
        self.core.scheduler.finished_req_ids = before.finished_req_ids

    def _finish(self, trace: Trace) -> None:
        while self.core.has_work():
            trace.add(self.core.step())
        self.core.check_integrity()


def check_trace(mode: Mode, trace: Trace, prompts: list[list[int]]) -> None:
    """The mode happened, and no other."""
    if not mode.at_once:
        assert trace.most_running == 1
    elif mode.is_scarce or mode.budget == 64:
        assert trace.most_running > 1
    else:
        assert trace.most_running == len(prompts)
    assert (trace.preemptions > 0) == mode.is_scarce
    total = sum(len(prompt) for prompt in prompts)
    if mode.turns == 2:
        found = sum((len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts)
        assert trace.hits == (found if mode.prefix_caching else 0)
        assert trace.prompt_tokens == 2 * total - trace.hits
    if mode.budget == 64:
        assert trace.most_prompt_tokens == 64
        assert trace.prompt_steps >= -(-total // 64)


@pytest.fixture(scope="module")
def host() -> Iterator[Any]:
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def checkpoints(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, list[Expected]]]:
    """Each checkpoint, and transformers' tokens for it, made when first asked for."""
    made: dict[str, tuple[Path, list[Expected]]] = {}

    def get(name: str) -> tuple[Path, list[Expected]]:
        if name not in made:
            from greedy_reference import continue_greedily

            folder = write_tiny_model(name, tmp_path_factory.mktemp(name))
            model = load_reference(folder, MAX_LEN)
            prompts = [
                [token % 250 for token in make_prompt([], 2 * length + 1, length)]
                for length in TINY_LENGTHS
            ]
            torch.set_num_threads(1)
            with warnings.catch_warnings():
                # Names of arguments change between the releases that this is compared with.
                warnings.simplefilter("ignore", FutureWarning)
                found = [continue_greedily(model, prompt, NEW_TOKENS) for prompt in prompts]
            expected = [Expected(prompt, **one) for prompt, one in zip(prompts, found, strict=True)]
            made[name] = folder, expected
        return made[name]

    return get


def test_a_small_model(
    name: str,
    ranks: int,
    modes: tuple[str, ...],
    checkpoints: Callable[[str], tuple[Path, list[Expected]]],
    host: Any,
    compare: Compare,
) -> None:
    folder, every = checkpoints(name)
    engine = TinyEngine(folder, ranks, host)
    try:
        torch.set_num_threads(1)  # products so small are slower shared
        for label in modes:
            mode = TINY_MODES[label]
            expected = [one for one in every if len(one.prompt) <= 200 or not mode.is_scarce]
            prompts = prompts_of(expected)
            trace = engine.run(mode, prompts)
            check_trace(mode, trace, prompts)
            names = [f"{turn}/{n}" for turn in range(mode.turns) for n in range(len(prompts))]
            got = [trace.tokens[one] for one in names]
            compare(f"{name}, TP {ranks}", label, expected * mode.turns, got)
    finally:
        engine.core.shutdown()
