"""What parameters change about logits, against the formulas written out."""

from __future__ import annotations

from collections import Counter

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookserve.engine.logit_edits import LogitEdits
from hookserve.engine.sampler import Sampler, SamplingMetadata, limit_min_p
from hookserve.engine.sampling_params import SamplingParams

INF = numpy.inf


def edited(logits, params, prompt=(), output=()):
    """The row after everything that the parameters change, and after so much output."""
    row = numpy.array(logits, dtype=numpy.float32)
    edits = LogitEdits.from_params(params, prompt, len(logits))
    assert edits is not None
    for token in output:
        edits.append(token)
    edits.apply(row)
    return row.tolist()


def test_repetition_divides_positive_logits_and_multiplies_negative_ones():
    params = SamplingParams(repetition_penalty=2.0)
    row = edited([1.0, -1.0, 3.0, -3.0, 0.0, 5.0], params, prompt=[0, 1, 1], output=[3, 4, 3])
    # Prompt and output, however often.
    assert row == [0.5, -2.0, 3.0, -6.0, 0.0, 5.0]
    rewarded = edited([1.0, -1.0], SamplingParams(repetition_penalty=0.5), prompt=[0, 1])
    assert rewarded == [2.0, -0.5]


def test_presence_and_frequency_count_the_output_alone():
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    row = edited([1.0, 1.0, 1.0, 1.0], params, prompt=[0, 0, 1], output=[1, 2, 1, 1])
    assert row == [1.0, 1.0 - 3 * 0.25 - 0.5, 1.0 - 0.25 - 0.5, 1.0]
    only = edited([1.0, 1.0], SamplingParams(frequency_penalty=-1.0), output=[0, 0])
    assert only == [3.0, 1.0]
    only = edited([1.0, 1.0], SamplingParams(presence_penalty=2.0), output=[0, 0])
    assert only == [-1.0, 1.0]


def test_repetition_comes_before_presence():
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0)
    assert edited([3.0, 3.0], params, output=[0]) == [0.5, 3.0]


def test_bias_comes_before_penalties():
    params = SamplingParams(logit_bias={0: 3.0, 2: -1.5}, repetition_penalty=2.0)
    assert edited([-1.0, 1.0, 1.0], params, prompt=[0]) == [1.0, 1.0, -0.5]


def test_only_allowed_tokens_are_left():
    params = SamplingParams(allowed_token_ids=[3, 1], logit_bias={1: 2.0, 0: 100.0})
    assert edited([9.0, 1.0, 9.0, 0.5], params) == [-INF, 3.0, -INF, 0.5]


def test_no_end_token_comes_before_min_tokens():
    params = SamplingParams(
        min_tokens=2, eos_token_ids=[1], stop_token_ids=[3], ignore_eos=True, logit_bias={3: 5.0}
    )
    assert edited([0.0, 1.0, 2.0, 3.0], params, output=[0]) == [0.0, -INF, 2.0, -INF]
    assert edited([0.0, 1.0, 2.0, 3.0], params, output=[0, 0]) == [0.0, 1.0, 2.0, 8.0]


def test_edits_rest_once_min_tokens_are_there():
    edits = LogitEdits.from_params(SamplingParams(min_tokens=1, eos_token_ids=[1]), [], 4)
    assert edits.acts
    edits.append(0)
    assert not edits.acts
    assert LogitEdits.from_params(SamplingParams(eos_token_ids=[1]), [], 4) is None


@pytest.mark.parametrize(
    ("output", "banned"),
    [
        ([], {5}),
        ([1], {5, 2}),
        ([1, 2], {5, 3}),
        ([0, 1, 2], {5, 3}),
        ([2], {5}),
        ([1, 2, 1], {5, 2}),
        ([1, 2, 4], {5, 0}),
        ([4, 2, 1, 2, 4], {5, 0}),
    ],
)
def test_the_last_token_of_a_bad_word_is_banned_behind_the_others(output, banned):
    words = [[5], [1, 2], [1, 2, 3], [2, 4, 0], [4, 1, 0]]
    row = edited([0.0] * 6, SamplingParams(bad_words_token_ids=words), output=output)
    assert {token for token, value in enumerate(row) if value == -INF} == banned


def test_bad_words_are_matched_in_the_output_not_in_the_prompt():
    params = SamplingParams(bad_words_token_ids=[[1, 2]])
    assert edited([0.0] * 3, params, prompt=[1]) == [0.0] * 3


def test_ids_beyond_the_models_logits_are_passed_over():
    params = SamplingParams(
        logit_bias={1: 1.0, 9: 1.0},
        allowed_token_ids=[1, 9],
        bad_words_token_ids=[[9]],
        min_tokens=1,
        stop_token_ids=[9],
        repetition_penalty=2.0,
        presence_penalty=1.0,
    )
    row = numpy.zeros(4, dtype=numpy.float32)
    LogitEdits.from_params(params, [9, 1], 10).apply(row)
    assert row.tolist() == [-INF, 0.5, -INF, -INF]


def test_min_p_leaves_out_what_is_less_likely_than_a_part_of_the_best():
    weights = numpy.array([0.09, 1.0, 0.1, 0.5], dtype=numpy.float32)
    limit_min_p(weights, 0.1)
    assert weights.tolist() == numpy.array([0, 1, 0.1, 0.5], dtype=numpy.float32).tolist()
    limit_min_p(weights, 1.0)
    assert weights.tolist() == [0.0, 1.0, 0.0, 0.0]


def metadata_of(params, prompt=()):
    edits = [LogitEdits.from_params(p, prompt, 8) for p in params]
    generators = [torch.Generator().manual_seed(at) for at in range(len(params))]
    return SamplingMetadata.from_params(params, generators, edits)


def test_min_p_is_taken_after_the_temperature():
    # At temperature 2 the weights are exp(0) = 1, exp(-1) = 0.37, exp(-2) = 0.14, ...
    logits = -2.0 * torch.arange(8.0)[None]
    metadata = metadata_of([SamplingParams(temperature=2.0, min_p=0.3)])
    seen = {int(Sampler().forward(logits, metadata).sampled_token_ids) for _ in range(60)}
    assert seen == {0, 1}


def test_greedy_and_random_rows_follow_their_edits_and_others_do_not():
    logits = torch.arange(8.0).flip(0).repeat(4, 1)
    metadata = metadata_of(
        [
            SamplingParams(temperature=0, logit_bias={5: 50.0}),
            SamplingParams(temperature=0),
            SamplingParams(temperature=1.0, allowed_token_ids=[6]),
            SamplingParams(temperature=0.01),
        ]
    )
    before = logits.clone()
    output = Sampler().forward(logits, metadata)
    assert output.sampled_token_ids[:, 0].tolist() == [5, 0, 6, 0]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e38, 1e300, 10**300])
def test_a_temperature_beyond_float32_still_draws_from_what_is_allowed(temperature):
    params = SamplingParams(temperature=temperature, allowed_token_ids=[2, 5])
    metadata = metadata_of([params])
    logits = torch.arange(8.0)[None]
    seen = {int(Sampler().forward(logits, metadata).sampled_token_ids) for _ in range(40)}
    assert seen == {2, 5}


@pytest.mark.parametrize("repetition", [1e-300, 1e300])
def test_a_repetition_penalty_beyond_float32_fails_its_request_alone(repetition):
    params = [SamplingParams(repetition_penalty=repetition, temperature=0), SamplingParams()]
    metadata = metadata_of(params, prompt=[4])
    output = Sampler().forward(torch.zeros(2, 8), metadata)
    assert set(output.errors) == {0}
    assert "repetition_penalty" in output.errors[0]
    metadata.edits[0].append(2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_allows_nothing_fails_alone_with_a_sentence(temperature):
    logits = torch.zeros(3, 8)
    params = [
        SamplingParams(temperature=temperature, logit_bias={1: 9.0}),
        SamplingParams(
            temperature=temperature, allowed_token_ids=[3], min_tokens=4, eos_token_ids=[3]
        ),
        SamplingParams(temperature=temperature, repetition_penalty=1e-39),
    ]
    output = Sampler().forward(logits + 5.0, metadata_of(params, prompt=[4]))
    assert set(output.errors) == {1, 2}
    assert "No token is left to choose" in output.errors[1]
    assert "min_tokens" in output.errors[1]
    assert "repetition_penalty" in output.errors[2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_edits_are_the_formulas_whatever_came_before(data):
    """All at once, over random histories, against the definition computed anew from all tokens."""
    vocab = 7
    token = st.integers(0, vocab - 1)
    tokens = st.lists(token, max_size=8)
    prompt, output = data.draw(tokens), data.draw(tokens)
    number = st.floats(-2, 2, width=16)
    repetition = data.draw(st.sampled_from([1.0, 0.5, 1.25, 2.0]))
    presence, frequency = data.draw(number), data.draw(number)
    bias = data.draw(st.dictionaries(token, number, max_size=3))
    allowed = data.draw(st.none() | st.lists(token, min_size=1, max_size=vocab))
    words = data.draw(st.lists(st.lists(token, min_size=1, max_size=3), max_size=3))
    min_tokens, ends = data.draw(st.integers(0, 8)), data.draw(tokens)
    logits = data.draw(st.lists(st.floats(-4, 4, width=16), min_size=vocab, max_size=vocab))

    params = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
        allowed_token_ids=allowed,
        bad_words_token_ids=words,
        min_tokens=min_tokens,
        eos_token_ids=ends,
    )
    expected = []
    counts = Counter(output)
    for at, logit in enumerate(logits):
        banned = any(
            w[-1] == at and output[max(0, len(output) - len(w) + 1) :] == w[:-1] for w in words
        )
        banned |= allowed is not None and at not in allowed
        banned |= at in ends and len(output) < min_tokens
        value = logit + bias.get(at, 0.0)
        if at in prompt or at in output:
            value = value / repetition if value > 0 else value * repetition
        if counts[at]:
            value -= frequency * counts[at] + presence
        expected.append(-INF if banned else value)
    edits = LogitEdits.from_params(params, prompt, vocab)
    row = numpy.array(logits, dtype=numpy.float32)
    if edits is not None:
        for one in output:
            edits.append(one)
        edits.apply(row)
    assert row.tolist() == pytest.approx(expected, abs=1e-5)
