"""Log-probabilities of output and prompt: transformers' numbers, however the steps are cut."""

from __future__ import annotations

import math
import time

import pytest
import torch

from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.logprobs import compute_logprobs
from hookserve.engine.messages import AddRequest
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

PROMPTS = [[(5 * n + 13 * at + at * at) % 250 for at in range(1 + 37 * n)] for n in range(4)]
NEW_TOKENS = 20


@pytest.fixture
def make_core(tiny_llama):
    """``make_core(**engine arguments)``: an engine on the small model."""
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))

    def make(**options):
        args = EngineArgs(model=str(tiny_llama), dtype="float32", **options)
        core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
        torch.set_num_threads(1)  # matrices this small are only slowed down by several
        return core

    yield make
    host.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(tiny_llama):
    """``reference(tokens)``: transformers' log-softmax at every position, [tokens, vocab]."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()

    def compute(tokens):
        with torch.inference_mode():
            return model(torch.tensor([tokens])).logits[0].log_softmax(-1)

    return compute


def run(core, params, prompts=PROMPTS, name=""):
    """All outputs of each request, in order."""
    for n, prompt in enumerate(prompts):
        core.add_request(AddRequest(f"{name}{n}", prompt, params, time.time()))
    said = {f"{name}{n}": [] for n in range(len(prompts))}
    preemptions = 0
    while core.has_work():
        report = core.step()
        preemptions += report.scheduler_stats.num_preempted_reqs
        for output in report.outputs:
            said[output.request_id].append(output)
        core.scheduler.check_integrity()
    return list(said.values()), preemptions


def check(entry, expected, token, count):
    """One position against transformers' row."""
    assert len(entry.token_ids) == len(entry.logprobs) == count + 1
    assert entry.token_ids[0] == token
    ids = torch.tensor(entry.token_ids)
    assert torch.allclose(torch.tensor(entry.logprobs), expected[ids], atol=1e-3)
    best = expected.topk(count).values
    assert torch.allclose(torch.tensor(entry.logprobs[1:]), best, atol=1e-3)
    at_least = int((expected >= expected[token] + 1e-3).sum())
    at_most = int((expected >= expected[token] - 1e-3).sum())
    assert at_least < entry.rank <= max(at_most, 1)


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
def test_logprobs_of_prompt_and_output_are_those_of_transformers(make_core, reference, options):
    core = make_core(**options)
    params = SamplingParams(
        temperature=1.0,
        seed=3,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=2,
        # They are the model's own, whatever is sampled.
        repetition_penalty=1.3,
        top_k=40,
    )
    preempted = 0
    # The second time all prompts are in the cache, and still each of their tokens is told of.
    for turn in range(2):
        said, preemptions = run(core, params, name=f"{turn}-")
        preempted += preemptions
        for prompt, outputs in zip(PROMPTS, said, strict=True):
            tokens = [token for output in outputs for token in output.new_token_ids]
            expected = reference(prompt + tokens)
            of_output = [entry for output in outputs for entry in output.logprobs]
            assert len(of_output) == len(tokens) == NEW_TOKENS
            for at, entry in enumerate(of_output):
                check(entry, expected[len(prompt) - 1 + at], tokens[at], 3)
            assert [output.prompt_logprobs is None for output in outputs] == [
                at > 0 for at in range(len(outputs))
            ]
            of_prompt = outputs[0].prompt_logprobs
            assert outputs[0].num_cached_tokens == 0
            assert len(of_prompt) == len(prompt)
            assert of_prompt[0] is None
            for at, entry in enumerate(of_prompt[1:], start=1):
                check(entry, expected[at - 1], prompt[at], 2)
    assert (preempted > 0) == ("num_gpu_blocks_override" in options)


def test_a_scored_prompt_is_still_cached_for_others(make_core):
    core = make_core()
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    run(core, scored, [PROMPTS[3]], "a")
    said, _ = run(core, SamplingParams(temperature=0, max_tokens=1), [PROMPTS[3]], "b")
    assert said[0][0].num_cached_tokens == 96
    assert said[0][0].logprobs is None
    assert said[0][0].prompt_logprobs is None


def test_a_prompt_that_is_preempted_half_way_is_told_of_once(make_core, reference):
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 1, "scheduling_policy": "priority"}
    core = make_core(**options)
    prompt = PROMPTS[3]
    scored = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    core.add_request(AddRequest("scored", prompt, scored, time.time(), priority=5))
    for _ in range(3):
        core.step()
    urgent = SamplingParams(temperature=0, max_tokens=2)
    core.add_request(AddRequest("urgent", [9, 8, 7], urgent, time.time(), priority=0))
    said = []
    while core.has_work():
        said += [output for output in core.step().outputs if output.request_id == "scored"]
    assert [output.num_preemptions for output in said] == [1, 1]
    assert said[1].prompt_logprobs is None
    expected = reference(prompt)
    for at, entry in enumerate(said[0].prompt_logprobs[1:], start=1):
        check(entry, expected[at - 1], prompt[at], 1)
    assert len(said[0].prompt_logprobs) == len(prompt)


def test_no_more_rows_of_logits_exist_at_once_than_allowed(make_core, monkeypatch):
    core = make_core()
    model = core.executor.worker.runner.model
    rows = []
    compute = type(model).compute_logits
    monkeypatch.setattr(
        type(model), "compute_logits", lambda self, h: rows.append(len(h)) or compute(self, h)
    )
    prompt = [at % 250 for at in range(150)]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
    said, _ = run(core, params, [prompt])
    assert len(said[0][0].prompt_logprobs) == 150
    # 149 positions tell of the next prompt token, the last one is sampled, then another.
    assert rows == [64, 64, 21, 1, 1]


def test_minus_one_is_the_whole_vocabulary_best_first(make_core, reference):
    core = make_core()
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, prompt_logprobs=-1)
    said, _ = run(core, params, [[1, 2, 3]])
    for entry in (said[0][0].logprobs[0], said[0][0].prompt_logprobs[2]):
        assert sorted(entry.token_ids[1:]) == list(range(260))
        assert entry.logprobs[1:] == sorted(entry.logprobs[1:], reverse=True)
        assert sum(map(math.exp, entry.logprobs[1:])) == pytest.approx(1.0, abs=1e-5)


def test_a_row_by_hand():
    # exp gives 1, 2, 4 and 1 of 8.
    logits = torch.tensor([[0.0, math.log(2), math.log(4), 0.0]], dtype=torch.float64)
    (entry,) = compute_logprobs(logits.bfloat16().double(), torch.tensor([1]), 2)
    assert entry.token_ids == [1, 2, 1]
    assert entry.rank == 2
    (entry,) = compute_logprobs(logits, torch.tensor([3]), 1)
    assert entry.logprobs == pytest.approx([math.log(1 / 8), math.log(4 / 8)], abs=1e-6)
    assert entry.token_ids == [3, 2]
    # Of equals each has the rank of the last one.
    assert entry.rank == 4
    (entry,) = compute_logprobs(logits, torch.tensor([2]), 0)
    assert (entry.token_ids, entry.rank) == ([2], 1)


def test_rows_of_one_call_do_not_mix():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)) * 30
    logits[3] += 1000
    tokens = torch.tensor([4, 3, 2, 1, 0])
    together = compute_logprobs(logits, tokens, 4)
    alone = [compute_logprobs(logits[n : n + 1], tokens[n : n + 1], 4)[0] for n in range(5)]
    assert together == alone
