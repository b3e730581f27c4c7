"""Logits to tokens: masks against transformers' warpers, draws against hand calculation."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookserve.engine.logit_edits import LogitEdits
from hookserve.engine.sampler import (
    Sampler,
    SamplingMetadata,
    limit_top_k,
    limit_top_p,
    make_buffer,
    pick,
)
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import PluginError
from hookserve.ops.op_function import OpFunction
from hookserve.ops.op_references import REFERENCES
from hookserve.ops.op_table import OpRow


def metadata(params: list[SamplingParams]) -> SamplingMetadata:
    seeds = [p.seed if p.seed is not None else 1000 + n for n, p in enumerate(params)]
    return SamplingMetadata.from_params(params, [torch.Generator().manual_seed(s) for s in seeds])


def sample(logits: torch.Tensor, params: list[SamplingParams]) -> list[int]:
    output = Sampler().forward(logits, metadata(params))
    assert output.errors == {}
    assert output.sampled_token_ids.shape == (len(params), 1)
    return output.sampled_token_ids[:, 0].tolist()


@pytest.fixture
def logits():
    return torch.randn(6, 500, generator=torch.Generator().manual_seed(0)) * 3


def test_greedy_takes_the_best_token_whatever_the_type(logits):
    greedy = [SamplingParams(temperature=0.0)] * 6
    assert sample(logits, greedy) == logits.argmax(-1).tolist()
    half = logits.bfloat16()
    assert sample(half, greedy) == half.float().argmax(-1).tolist()


@pytest.mark.parametrize("k", [1, 3, 50, 499, 500, 10_000])
def test_top_k_keeps_what_transformers_keeps(logits, k):
    from transformers import TopKLogitsWarper

    expected = TopKLogitsWarper(min(k, 500))(None, logits.clone()).isfinite()
    for row, kept in zip(logits.numpy(), expected, strict=True):
        limit_top_k(row, k)
        assert numpy.isfinite(row).tolist() == kept.tolist()


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("p", [0.001, 0.3, 0.9, 0.95, 0.9999])
def test_top_p_keeps_what_transformers_keeps(p, spread):
    from transformers import TopPLogitsWarper

    # More tokens than are sorted at once, so that the search for the limit divides them.
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(1)) * spread
    expected = TopPLogitsWarper(p)(None, logits.clone()).isfinite()
    weights = (logits - logits.amax(-1, keepdim=True)).exp().numpy()
    for row, kept in zip(weights, expected, strict=True):
        limit_top_p(row, p)
        # In float32, sums of thousands of weights differ by a token at the limit.
        assert abs(int((row > 0).sum()) - int(kept.sum())) <= (0 if spread > 1 else 2)
        differ = (torch.from_numpy(row) > 0) != kept
        assert int(differ.sum()) <= (0 if spread > 1 else 2)


def test_limits_that_are_off_change_nothing():
    row = numpy.array([0.1, 0.4, 0.5], dtype=numpy.float32)
    kept = row.copy()
    limit_top_k(row, 0)
    limit_top_k(row, 3)
    limit_top_p(row, 1.0)
    assert (row == kept).all()


def test_ties_at_the_limit_stay_together():
    row = numpy.array([2.0, 1.0, 1.0, 0.0], dtype=numpy.float32)
    limit_top_k(row, 2)
    assert numpy.isfinite(row).tolist() == [True, True, True, False]
    equal = numpy.ones(2000, dtype=numpy.float32)
    limit_top_p(equal, 0.25)
    assert (equal == 1.0).all()


def test_pick_takes_the_token_at_which_the_sum_passes_the_draw():
    weights = make_buffer(4)
    weights[:4] = [0.5, 0.0, 1.0, 0.5]
    draws = [0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 1.0 - 2**-53]
    assert [pick(weights, draw) for draw in draws] == [0, 0, 2, 2, 2, 3, 3]


def test_pick_finds_every_token_of_a_large_vocabulary():
    # Ten tokens have weight, in different chunks; a draw in the middle of each must give it.
    weights = make_buffer(3000)
    places = [0, 1, 255, 256, 700, 1023, 1024, 2000, 2998, 2999]
    weights[places] = 1.0
    assert [pick(weights, (n + 0.5) / 10) for n in range(10)] == places
    assert pick(weights, 1.0 - 2**-53) == 2999


def test_frequencies_follow_the_temperature():
    row = torch.tensor([0.0, 1.0, 2.0])
    count = 4000
    for temperature in (0.5, 1.0, 2.0):
        params = SamplingParams(temperature=temperature)
        tokens = torch.tensor(sample(row.expand(count, -1), [params] * count))
        expected = (row / temperature).softmax(-1)
        actual = torch.bincount(tokens, minlength=3) / count
        # Four standard deviations of a frequency over 4000 draws are at most 0.032.
        assert torch.allclose(actual, expected, atol=0.032), temperature


def test_limits_hold_in_draws(logits):
    params = [
        SamplingParams(temperature=1.9, top_k=2, seed=1),
        SamplingParams(temperature=1.9, top_p=0.2, seed=1),
        SamplingParams(temperature=1.9, top_k=-1, seed=1),
        SamplingParams(temperature=0.0, top_k=5),
    ]
    best = logits[0].topk(2).indices.tolist()
    seen: list[set[int]] = [set() for _ in params]
    info = metadata(params)
    for _ in range(60):
        output = Sampler().forward(logits[:1].expand(4, -1), info).sampled_token_ids[:, 0]
        for row, token in enumerate(output.tolist()):
            seen[row].add(token)
    assert seen[0] == set(best)
    assert len(seen[1]) < len(seen[2])
    assert len(seen[2]) > 20
    assert seen[3] == {best[0]}


def test_a_row_does_not_depend_on_its_neighbours(logits):
    mine = SamplingParams(temperature=1.3, top_p=0.8, top_k=40, seed=5)
    others = [
        SamplingParams(temperature=0.7, top_k=3),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=2.0, top_p=0.5),
        SamplingParams(temperature=1.0),
    ]
    alone = metadata([mine])
    first = [int(Sampler().forward(logits[2:3], alone).sampled_token_ids) for _ in range(30)]
    crowd = metadata([others[0], others[1], mine, others[2], others[3], others[0]])
    second = [int(Sampler().forward(logits, crowd).sampled_token_ids[2, 0]) for _ in range(30)]
    assert first == second
    assert len(set(first)) > 3


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_finite_numbers_fails_alone(logits, wrong, temperature):
    logits[1, 7] = wrong
    logits[4] = -torch.inf
    params = [SamplingParams(temperature=temperature, seed=3)] * 6
    output = Sampler().forward(logits, metadata(params))
    assert set(output.errors) == {1, 4}
    kept = [0, 2, 3, 5]
    clean = sample(logits[kept], [params[0]] * 4)
    assert output.sampled_token_ids[kept, 0].tolist() == clean


def test_a_temperature_near_zero_neither_overflows_nor_wanders(logits):
    params = [SamplingParams(temperature=t) for t in (1e-3, 2e-5, 1e-9, 1e-300, 0.0, 1e-38)]
    assert sample(logits * 100, params) == logits.argmax(-1).tolist()


def test_the_logits_are_left_as_they_were(logits):
    before = logits.clone()
    sample(logits, [SamplingParams(temperature=0.5, top_k=5, top_p=0.5)] * 6)
    assert torch.equal(logits, before)


@settings(max_examples=80, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.1, 2.0),
    top_k=st.integers(-1, 45),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**32),
)
def test_a_draw_is_within_all_limits_at_once(logits, temperature, top_k, top_p, min_p, seed):
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    (token,) = sample(torch.tensor([logits]), [params])
    # In float64: min-p on the probabilities, then the k best, then the nucleus of what is left.
    scaled = torch.tensor(logits, dtype=torch.float64) / temperature
    weights = (scaled - scaled.max()).exp()
    own = float(weights[token])
    assert own >= min_p * (1 - 1e-4)
    better = weights[weights > own * (1 + 1e-4)]
    if 0 < top_k < len(logits):
        assert len(better) < top_k
    # What is certainly better weighs less than the part p of all that may have been left.
    left = weights[weights >= min_p * (1 - 1e-4)].sort(descending=True).values
    if 0 < top_k < len(left):
        left = left[left >= left[top_k - 1] * (1 - 1e-4)]
    assert float(better.sum()) <= top_p * float(left.sum()) * (1 + 1e-4)


# -- a provider of the op ``sampling`` -----------------------------------------------------------


def provided_sampler(provided):
    sampler = Sampler()
    sampler.op = OpFunction(OpRow("sampling", "", "mine", "dist:hookserve:me", "wanted"), provided)
    return sampler


def test_a_provider_by_the_definition_gives_what_the_sampler_does(logits):
    params = [
        SamplingParams(temperature=0.0, logit_bias={7: 100.0}),
        SamplingParams(temperature=0.7, top_k=20, seed=1),
        SamplingParams(temperature=1.3, top_p=0.6, allowed_token_ids=[3, 5, 8], seed=2),
        SamplingParams(temperature=1.0, min_p=0.1, seed=3),
        SamplingParams(temperature=2.0, seed=4),
        SamplingParams(temperature=1.0, seed=5),
    ]
    logits[5] = float("nan")
    seen = []

    def provided(*given):
        seen.append(given)
        return REFERENCES["sampling"](*given)

    def sampled(sampler):
        edits = [LogitEdits(each, [1], 500) for each in params]
        generators = [torch.Generator().manual_seed(n) for n in range(6)]
        before = logits.clone()
        output = sampler.forward(logits, SamplingMetadata.from_params(params, generators, edits))
        assert torch.equal(logits.nan_to_num(9.0), before.nan_to_num(9.0))
        assert list(output.errors) == [5]
        return output.sampled_token_ids[:5, 0].tolist()

    sampler = provided_sampler(provided)
    assert sampled(sampler) == sampled(Sampler())
    ((final, *_, draws),) = seen
    assert int(final[0].argmax()) == 7 and final[2].isfinite().sum() == 3, "after all edits"
    assert final.isfinite()[5].all()
    assert draws[0] == 0.0 and (draws[1:] > 0.0).all()
    assert sampled(provided_sampler(lambda *given: NotImplemented)) == sampled(Sampler())
    assert sampler.op.row.calls == 1


@pytest.mark.parametrize(
    "answer", [torch.tensor([0] * 5), torch.tensor([500] * 6), torch.tensor([0.5] * 6), None]
)
def test_a_provider_that_gives_no_tokens_is_named(logits, answer):
    sampler = provided_sampler(lambda *given: answer)
    with pytest.raises(PluginError, match=r"dist:hookserve:me.*provider 'mine' of sampling: "):
        sampler.forward(logits, metadata([SamplingParams()] * 6))
