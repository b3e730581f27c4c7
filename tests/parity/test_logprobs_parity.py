"""Log-probabilities of a real model's prompt and output: transformers' to 1e-3."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest, TokenLogprobs
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

TOLERANCE = 1e-3
TEXT = "The capital of France is Paris. The capital of Italy is"
NEW_TOKENS = 8
COUNT = 5

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def prompt(smollm2_f32: Path) -> list[int]:
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(smollm2_f32 / "tokenizer.json")).encode(TEXT).ids)


def ours(
    folder: Path, prompt: list[int]
) -> tuple[list[int], list[TokenLogprobs], list[TokenLogprobs | None]]:
    """The greedy tokens, their log-probabilities, and the prompt's, computed in small chunks."""
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    args = EngineArgs(
        model=str(folder),
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=5,
    )
    core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
    params = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, logprobs=COUNT, prompt_logprobs=COUNT
    )
    core.add_request(AddRequest("one", prompt, params, time.time()))
    tokens: list[int] = []
    of_output: list[TokenLogprobs] = []
    of_prompt: list[TokenLogprobs | None] = []
    while core.has_work():
        for output in core.step().outputs:
            tokens += output.new_token_ids
            of_output += output.logprobs or []
            of_prompt += output.prompt_logprobs or []
    core.shutdown()
    host.close()
    torch.set_num_threads(threads)
    return tokens, of_output, of_prompt


def test_logprobs_are_those_of_transformers(smollm2_f32: Path, prompt: list[int]) -> None:
    from transformers import AutoModelForCausalLM

    tokens, of_output, of_prompt = ours(smollm2_f32, prompt)
    sequence = prompt + tokens
    model = AutoModelForCausalLM.from_pretrained(smollm2_f32, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([sequence])).logits[0].log_softmax(-1)

    assert len(of_output) == len(tokens) == NEW_TOKENS
    assert len(of_prompt) == len(prompt)
    assert of_prompt[0] is None
    for at, entry in enumerate([*of_prompt[1:], *of_output]):
        assert entry is not None
        row = expected[at]
        assert entry.token_ids[0] == sequence[at + 1]
        theirs = row[torch.tensor(entry.token_ids)]
        assert torch.allclose(torch.tensor(entry.logprobs), theirs, rtol=0, atol=TOLERANCE), at
        best = row.topk(COUNT).values
        assert torch.allclose(torch.tensor(entry.logprobs[1:]), best, rtol=0, atol=TOLERANCE), at
        own = row[entry.token_ids[0]]
        # Nearly equal tokens may stand in another order.
        certain = int((row > own + TOLERANCE).sum())
        possible = int((row >= own - TOLERANCE).sum())
        assert certain < entry.rank <= possible, at
