"""Requests with every kind of parameter at once: each says what it says alone."""

from __future__ import annotations

import time

import pytest
import torch

from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest
from hookserve.engine.parallel_sampling import fan_out
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

NEW_TOKENS = 18
VARIED = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.4, "logprobs": 2},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"temperature": 0, "logit_bias": {7: 6.0, 11: 5.5, 100: -100.0}, "frequency_penalty": 2.0},
    {"temperature": 0, "allowed_token_ids": [*range(40, 90)], "repetition_penalty": 1.1},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.3, "seed": 2, "min_p": 0.2, "logprobs": 0},
    {"temperature": 0.9, "seed": 3, "top_p": 0.7, "presence_penalty": -0.5, "prompt_logprobs": 1},
    {"temperature": 1.1, "seed": 4, "top_k": 12, "min_p": 0.01, "frequency_penalty": 0.4},
    {"temperature": 2.0, "seed": 5, "bad_words_token_ids": [[n] for n in range(0, 250, 3)]},
    {"temperature": 2.0, "seed": 5, "bad_words_token_ids": [[n, n + 1] for n in range(250)]},
    # Half of the vocabulary ends the sequence: at once, or behind the tenth token.
    {"temperature": 1.5, "seed": 6, "stop_token_ids": [*range(130)], "ignore_eos": False},
    {"temperature": 1.5, "seed": 6, "stop_token_ids": [*range(130)], "min_tokens": 10},
    # Nine requests of three prompts.
    {"temperature": 1.2, "seed": 7, "n": 3, "logprobs": 1},
    {"temperature": 1.2, "seed": 9, "n": 3, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 1.2, "seed": 9, "n": 1, "best_of": 3, "top_p": 0.9},
]


@pytest.fixture
def host():
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()
    torch.set_num_threads(threads)


def requests():
    """``(name, prompt, params)`` of every sequence; neighbours share the start of their prompts."""
    for at, given in enumerate(VARIED):
        prompt = [(3 * (at // 3) + 17 * n + n * n) % 250 for n in range(5 + 4 * at)]
        params = SamplingParams(**{"max_tokens": NEW_TOKENS, "ignore_eos": True, **given})
        for index, child in enumerate(fan_out(params)):
            yield f"{at}/{index}", prompt, child


class Said:
    """What the engine said of each request."""

    def __init__(self):
        self.tokens = {}
        self.logprobs = {}
        self.prompt_logprobs = {}
        self.ends = {}
        self.preemptions = 0

    def take(self, report):
        self.preemptions += report.scheduler_stats.num_preempted_reqs
        for output in report.outputs:
            name = output.request_id
            self.tokens.setdefault(name, []).extend(output.new_token_ids)
            self.logprobs.setdefault(name, []).extend(output.logprobs or [])
            if output.prompt_logprobs is not None:
                self.prompt_logprobs[name] = output.prompt_logprobs
            self.ends[name] = (output.finish_reason, output.stop_reason, output.error)

    def run(self, core):
        while core.has_work():
            self.take(core.step())
            core.scheduler.check_integrity()


def add(core, name, prompt, params):
    core.add_request(AddRequest(name, prompt, params, time.time()))


def assert_close(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.token_ids == other.token_ids
        assert one.rank == other.rank
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_each_of_many_different_requests_says_what_it_says_alone(tiny_llama, host):
    def make_core(**options):
        args = EngineArgs(model=str(tiny_llama), dtype="float32", max_model_len=128, **options)
        core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
        torch.set_num_threads(1)  # matrices this small are only slowed down by several
        return core

    alone, together = Said(), Said()
    core = make_core(enable_prefix_caching=False)
    for request in requests():
        add(core, *request)
        alone.run(core)

    # Six places for 22 sequences, so that slots are used again; blocks for four or so, so that
    # some are preempted; chunks of prompts beside decoding; and some go away half way.
    core = make_core(
        max_num_seqs=6, max_num_batched_tokens=40, block_size=8, num_gpu_blocks_override=20
    )
    doomed = []
    for at, request in enumerate(requests()):
        add(core, *request)
        if at % 4 == 0:
            doomed.append(f"doomed-{at}")
            noise = SamplingParams(repetition_penalty=1.9, logprobs=5, max_tokens=90, min_tokens=90)
            add(core, doomed[-1], request[1], noise)
        for _ in range(2):
            together.take(core.step())
        if at % 4 == 3:
            core.abort_requests(doomed[:-1])
    together.run(core)

    assert together.preemptions > 0
    names = [name for name, _, _ in requests()]
    assert len(names) == 13 + 9
    for name in names:
        assert together.tokens[name] == alone.tokens[name], name
        assert together.ends[name] == alone.ends[name]
        assert_close(together.logprobs[name], alone.logprobs[name])
    assert set(alone.prompt_logprobs) == {"7/0"}
    assert_close(together.prompt_logprobs["7/0"], alone.prompt_logprobs["7/0"])
    # The parameters did something: what they rule out is not there, and no two are the same.
    assert all(token in range(40, 90) for token in alone.tokens["4/0"])
    assert all(token % 3 for token in alone.tokens["9/0"] if token < 250)
    pairs = list(zip(alone.tokens["10/0"], alone.tokens["10/0"][1:], strict=False))
    assert not any(first + 1 == second for first, second in pairs if first < 250)
    assert len(alone.tokens["11/0"]) < 10 < len(alone.tokens["12/0"]) < NEW_TOKENS
    assert len({tuple(alone.tokens[name]) for name in names}) == len(names)
