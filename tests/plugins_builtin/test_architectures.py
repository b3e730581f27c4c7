"""Every architecture and rotation against transformers: logits and greedy tokens, in every cut."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine import LLM, SamplingParams
from hookserve.engine.errors import ModelFileError
from hookserve.ops.context import TensorParallelGroup, set_tp_group
from hookserve.plugins_builtin.models import MODULES
from step_runner import StepRunner, load_model, make_vllm_config
from tiny_llama import VOCAB
from tiny_models import TINY_MODELS, load_reference, write_tiny_model

SERVED = 1024
BLOCK = 4
PROMPT, GENERATED = 45, 20  # longer than the windows of 16, and over several blocks' borders


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("tiny-models")

    def write(name: str) -> Path:
        return root / name if (root / name).exists() else write_tiny_model(name, root / name)

    return write


def runner_of(folder: Path, dtype: str = "float32") -> StepRunner:
    config = make_vllm_config(folder, dtype, max_model_len=SERVED, block_size=BLOCK)
    name = config.model_config.architectures[0]
    module = importlib.import_module(f"hookserve.plugins_builtin.{MODULES[name]}")
    return StepRunner(config, load_model(config, getattr(module, name)), num_blocks=160)


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=generator).tolist()


def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
        return logits


def generate(
    runner: StepRunner, tokens: list[int], blocks: list[int], chunk: int
) -> tuple[list[int], torch.Tensor]:
    """The greedy continuation, and the logits of every position but the last one's."""
    tokens, done, logits = list(tokens), 0, []
    end = len(tokens) + GENERATED
    while len(tokens) < end:
        new = tokens[done : done + chunk]
        logits.append(runner.step([(new, done, blocks)]))
        done += len(new)
        if done == len(tokens):
            tokens.append(int(logits[-1][-1].argmax()))
    return tokens, torch.cat(logits)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_tokens_and_logits_equal_transformers(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(name)
    reference = load_reference(folder, SERVED)
    runner = runner_of(folder)
    blocks = [40, 3, 17, 9, *range(60, 75)]  # not in order: a block table, not a stretch

    whole = generate(runner, prompt(PROMPT, 1), blocks, chunk=PROMPT)
    chunked = generate(runner, prompt(PROMPT, 1), [*range(20, 39)], chunk=8)

    want = reference_logits(reference, whole[0])
    top = want.topk(2).values
    assert (top[:, 0] - top[:, 1]).median() > 0.05  # or equal tokens would say nothing
    assert whole[0][PROMPT:] == want[PROMPT - 1 : -1].argmax(-1).tolist()
    assert chunked[0] == whole[0]
    torch.testing.assert_close(whole[1], want[:-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(chunked[1], want[:-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_batch_of_several_equals_transformers(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(name)
    reference = load_reference(folder, SERVED)
    runner = runner_of(folder)
    lengths = [1, 5, 16, 17, 33, 90]
    prompts = [prompt(length + 1, length) for length in lengths]
    tables = [list(range(25 * row, 25 * row + 25)) for row in range(len(lengths))]

    first = [(tokens[:-1], 0, table) for tokens, table in zip(prompts, tables, strict=True)]
    last = [
        (tokens[-1:], len(tokens) - 1, table) for tokens, table in zip(prompts, tables, strict=True)
    ]
    prefilled = runner.step(first).split(lengths)
    decoded = runner.step(last)

    for tokens, before, after in zip(prompts, prefilled, decoded, strict=True):
        want = reference_logits(reference, tokens)
        torch.testing.assert_close(before, want[:-1], rtol=0, atol=1e-4)
        torch.testing.assert_close(after, want[-1], rtol=0, atol=1e-4)


def test_gemma2_without_stated_caps_has_those_of_transformers(tmp_path: Path) -> None:
    folder = write_tiny_model("gemma2", tmp_path / "model")
    file = folder / "config.json"
    stated = json.loads(file.read_text())
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        del stated[key]
    file.write_text(json.dumps(stated))
    tokens = prompt(PROMPT, 1)
    logits = runner_of(folder).step([(tokens, 0, [*range(20)])])
    want = reference_logits(load_reference(folder), tokens)
    torch.testing.assert_close(logits, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama-yarn", "mistral", "qwen2", "qwen3", "gemma2", "opt"])
def test_bfloat16_is_as_close_to_float32_as_transformers_own(
    name: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(name)
    tokens = prompt(200, 3)
    want = reference_logits(load_reference(folder, SERVED), tokens)
    theirs = reference_logits(load_reference(folder, SERVED, torch.bfloat16), tokens).float()
    runner = runner_of(folder, "bfloat16")
    blocks = [*range(50)]
    first = runner.step([(tokens[:150], 0, blocks)])
    ours = torch.cat([first, runner.step([(tokens[150:], 150, blocks)])]).float()

    assert (ours - want).abs().mean() <= 1.25 * (theirs - want).abs().mean()


class ThreadGroup(TensorParallelGroup):
    """A rank among threads: what they hand in meets in a shared list."""

    def __init__(self, rank: int, parts: list[torch.Tensor], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(parts))
        self.parts = parts
        self.barrier = barrier

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.barrier.wait(60)
        self.parts[self.rank] = x.clone()
        self.barrier.wait(60)
        return list(self.parts)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(sum(self._exchange(x)))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchange(x), dim=-1)


def split_size(model: Any) -> int:
    """Numbers in the weights of all layers but the one that every rank keeps whole."""
    return sum(p.numel() for name, p in model.named_parameters() if "embed_positions" not in name)


@pytest.mark.parametrize(
    "name", ["llama-biased", "mistral", "qwen2", "qwen3", "gemma2", "opt", "opt-projected"]
)
def test_two_ranks_equal_transformers(name: str, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(name)
    tokens = prompt(40, 3)
    parts, barrier = [torch.empty(0)] * 2, threading.Barrier(2)
    runners = []
    for rank in range(2):
        with set_tp_group(ThreadGroup(rank, parts, barrier)):
            runners.append(runner_of(folder))

    def run(runner: StepRunner) -> torch.Tensor:
        try:
            first = runner.step([(tokens[:39], 0, [*range(10)])])
            return torch.cat([first, runner.step([(tokens[39:], 39, [*range(10)])])])
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(run, runners))

    want = reference_logits(load_reference(folder, SERVED), tokens)
    for logits in both:
        torch.testing.assert_close(logits, want, rtol=0, atol=1e-4)
    sizes = [split_size(runner.model) for runner in runners]
    assert sizes[0] == sizes[1] < 0.6 * split_size(runner_of(folder).model)


def test_a_soft_cap_larger_than_any_whole_number_of_a_tensor_caps_nothing(tmp_path: Path) -> None:
    huge = {"attn_logit_softcapping": 10**30, "final_logit_softcapping": 10**30}
    folder = write_tiny_model("gemma2", tmp_path / "gemma2")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | huge))
    with LLM(str(folder), kv_cache_memory_bytes=1 << 20) as llm:
        (output,) = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=2))
    assert output.outputs[0].finish_reason == "length"


def test_an_opt_whose_heads_do_not_divide_it_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model("opt", tmp_path / "opt")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_size": 1}))
    with pytest.raises(ModelFileError, match="'hidden_size'; expected a multiple of the 4 heads"):
        LLM(str(folder), kv_cache_memory_bytes=1 << 20)
