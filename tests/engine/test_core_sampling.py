"""What sampling parameters do to requests of a whole engine: refusals, failures, ends."""

from __future__ import annotations

import pytest

from fake_engine import VOCAB, continuation, make_request


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias: 97 is not a token id of the vocabulary"),
        ({"allowed_token_ids": [1, 10**9]}, "allowed_token_ids: 1000000000 is not"),
        ({"stop_token_ids": [VOCAB], "min_tokens": 2}, "stop_token_ids: 97 is not"),
        ({"bad_words_token_ids": [[1, VOCAB]]}, "bad_words: 97 is not"),
    ],
)
def test_token_ids_that_the_model_lacks_are_refused_and_others_go_on(
    make_core, run_all, params, named
):
    core = make_core()
    core.add_request(make_request("good", [1, 2, 3], max_tokens=6))
    core.add_request(make_request("bad", [1, 2, 3], **params))
    collected = run_all(core)
    assert collected.last["bad"].finish_reason == "error"
    assert collected.last["bad"].error.startswith(named)
    assert collected.tokens["good"] == continuation([1, 2, 3], 6)


def test_a_request_for_which_nothing_is_possible_fails_alone_when_it_is_so(make_core, run_all):
    core = make_core()
    first = continuation([4, 5], 1)
    core.add_request(make_request("good", [4, 5], max_tokens=6))
    # One token is allowed, and it may not follow itself.
    core.add_request(
        make_request(
            "bad", [4, 5], allowed_token_ids=first, bad_words_token_ids=[first * 2], max_tokens=6
        )
    )
    collected = run_all(core)
    assert collected.tokens["bad"] == first
    assert collected.last["bad"].finish_reason == "error"
    assert "No token is left to choose" in collected.last["bad"].error
    assert collected.last["bad"].is_refusal
    assert collected.tokens["good"] == continuation([4, 5], 6)
    assert core.scheduler.kv_cache.usage == 0.0


def test_a_scored_prompt_is_computed_whole_though_it_is_cached(make_core, run_all):
    core = make_core()
    prompt = list(range(12))
    core.add_request(make_request("first", prompt))
    run_all(core)
    core.add_request(make_request("scored", prompt, prompt_logprobs=0))
    core.add_request(make_request("third", prompt))
    assert core.scheduler.schedule().num_scheduled_tokens == {"scored": 12, "third": 4}


def test_without_max_tokens_a_request_takes_all_that_is_left(make_core, run_all):
    core = make_core(max_model_len=24)
    core.add_request(make_request("a", [1, 2, 3], max_tokens=None))
    collected = run_all(core)
    assert collected.tokens["a"] == continuation([1, 2, 3], 21)
    assert collected.last["a"].finish_reason == "length"


def test_no_end_token_before_min_tokens_then_it_ends(make_core, run_all):
    core = make_core()
    words = continuation([7, 8], 2)
    core.add_request(make_request("plain", [7, 8], max_tokens=9, eos_token_ids=words[1:]))
    late = {"eos_token_ids": range(90), "min_tokens": 5}
    core.add_request(make_request("late", [7, 8], max_tokens=9, **late))
    collected = run_all(core)
    assert collected.tokens["plain"] == words
    assert collected.last["plain"].finish_reason == "stop"
    # Six tokens of the vocabulary are no end: the best of those, five times, then the model's own.
    assert len(collected.tokens["late"]) >= 6
    assert all(token >= 90 for token in collected.tokens["late"][:5])
    assert collected.tokens["late"][-1] < 90
    assert collected.last["late"].finish_reason == "stop"


def test_parameters_that_come_and_go_leave_nothing_behind_in_the_workers(make_core, run_all):
    core = make_core(max_num_seqs=2)
    heavy = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "logprobs": 3,
        "prompt_logprobs": 1,
        "bad_words_token_ids": [[3, 4]],
    }
    for n in range(6):
        core.add_request(make_request(f"heavy-{n}", [n, 1, 2], max_tokens=5, **heavy))
        core.add_request(make_request(f"plain-{n}", [n, 1, 2], max_tokens=5))
    collected = run_all(core)
    for n in range(6):
        assert collected.tokens[f"plain-{n}"] == continuation([n, 1, 2], 5)
        assert collected.last[f"plain-{n}"].logprobs is None
    # A request's end reaches the workers with the next step.
    core.add_request(make_request("last", [1], max_tokens=1))
    run_all(core)
    assert set(core.executor.worker.runner.requests) == {"last"}
