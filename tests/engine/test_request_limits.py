"""How many log-probabilities a request may ask for, alone and with what may run beside it."""

from __future__ import annotations

import pytest

from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.request_limits import MAX_STEP_LOGPROBS, ContextLimits


def limits(max_logprobs: int, *, vocab_size: int = 50_000, max_num_seqs: int = 32) -> ContextLimits:
    return ContextLimits(
        max_model_len=8192,
        kv_capacity=8192,
        vocab_size=vocab_size,
        max_logprobs=max_logprobs,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=1024,
    )


@pytest.mark.parametrize(
    ("most", "asked", "shown"),
    [(20, None, None), (20, 0, 0), (20, 20, 20), (0, 0, 0), (-1, 30, 30), (-1, -1, 50_000)],
)
def test_what_is_shown(most: int, asked: int | None, shown: int | None) -> None:
    assert limits(most).num_logprobs(asked, "logprobs") == shown


@pytest.mark.parametrize(("most", "asked"), [(20, 21), (20, -1), (0, 1), (-1, 50_001)])
def test_more_than_the_limit_is_refused_with_it(most: int, asked: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        limits(most).num_logprobs(asked, "top_logprobs")
    assert caught.value.param == "top_logprobs"
    assert str(50_000 if most == -1 else most) in caught.value.message


def test_all_of_a_large_vocabulary_do_not_fit_one_step_of_many() -> None:
    assert limits(-1, vocab_size=152_000, max_num_seqs=16).num_logprobs(-1, "logprobs") == 152_000
    with pytest.raises(InvalidRequestError, match=str(MAX_STEP_LOGPROBS)):
        limits(-1, vocab_size=152_000).num_logprobs(-1, "logprobs")


def test_a_prompts_are_counted_with_those_that_may_end_in_the_same_step() -> None:
    # Of 32 in a step, one may have begun before; the others share 1,024 tokens.
    fits = (MAX_STEP_LOGPROBS - 1024 * 21) // 21
    limits(20).check_prompt_logprobs(20, fits)
    with pytest.raises(InvalidRequestError) as caught:
        limits(20).check_prompt_logprobs(20, fits + 1)
    assert caught.value.param == "prompt_logprobs"
    limits(20).check_prompt_logprobs(None, 10**9)
    # All of the vocabulary: 32 prompts of two tokens, or one alone of 83.
    limits(-1).check_prompt_logprobs(-1, 2)
    with pytest.raises(InvalidRequestError):
        limits(-1).check_prompt_logprobs(-1, 3)
    limits(-1, max_num_seqs=1).check_prompt_logprobs(-1, 83)
