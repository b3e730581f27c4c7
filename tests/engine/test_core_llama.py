"""The whole engine on a small random Llama: transformers' tokens, however the step is cut."""

from __future__ import annotations

import time

import pytest
import torch

from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

PROMPTS = [[(7 * n + 11 * at + at * at) % 250 for at in range(3 + 29 * n)] for n in range(5)]
NEW_TOKENS = 24


@pytest.fixture
def host():
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def expected(tiny_llama):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(generated[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"block_size": 8, "num_gpu_blocks_override": 19, "max_model_len": 152},
        {"enable_prefix_caching": False},
    ],
    ids=["plain", "in chunks", "preempted", "without prefixes"],
)
def test_greedy_tokens_are_those_of_transformers(tiny_llama, host, expected, options):
    args = EngineArgs(model=str(tiny_llama), dtype="float32", **options)
    core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
    torch.set_num_threads(1)  # products so small are slower shared
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    tokens: dict[str, list[int]] = {}
    preemptions = 0
    # Twice, so that the second time finds what the first one cached.
    for turn in range(2):
        for n, prompt in enumerate(PROMPTS):
            core.add_request(AddRequest(f"{turn}-{n}", prompt, params, time.time()))
        while core.has_work():
            report = core.step()
            preemptions += report.scheduler_stats.num_preempted_reqs
            for output in report.outputs:
                tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            core.scheduler.check_integrity()
    assert (preemptions > 0) == ("num_gpu_blocks_override" in options)
    for turn in range(2):
        for n, wanted in enumerate(expected):
            assert tokens[f"{turn}-{n}"] == wanted, (turn, n)
