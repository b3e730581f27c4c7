"""What parameters may be, how wrong ones are named, and how one request becomes several."""

from __future__ import annotations

import msgspec
import pytest

from hookserve.engine.parallel_sampling import choose_best, fan_out
from hookserve.engine.sampling_params import SamplingParams


def test_collections_and_single_texts_become_lists():
    params = SamplingParams(
        stop="x",
        stop_token_ids=[1, 2],
        bad_words=["a", "b"],
        bad_words_token_ids=[[1, 2], [3]],
        allowed_token_ids=range(3),
        eos_token_ids=None,
    )
    assert params.stop == ["x"]
    assert params.stop_token_ids == [1, 2]
    assert params.bad_words == ["a", "b"]
    assert params.bad_words_token_ids == ((1, 2), (3,))
    assert params.allowed_token_ids == [0, 1, 2]
    assert params.eos_token_ids == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 0}, "n: 0 is not a whole number from 1 on"),
        ({"n": 1.0}, "n: 1.0 is not a whole number from 1 on"),
        ({"n": 3, "best_of": 2}, "best_of: 2 is not at least n (3)"),
        ({"temperature": -0.1}, "temperature: -0.1 is not a number from 0 on"),
        ({"temperature": float("nan")}, "temperature: nan is not a number from 0 on"),
        ({"temperature": "1"}, "temperature: '1' is not a number from 0 on"),
        ({"temperature": 10**400}, "temperature: a whole number of 1329 bits is not a number"),
        ({"top_k": 10**5000}, "top_k: a whole number of 16610 bits is not a whole number from -1"),
        ({"top_p": 0}, "top_p: 0 is not a number above 0, up to 1"),
        ({"top_p": 1.01}, "top_p: 1.01 is not a number above 0, up to 1"),
        ({"top_k": -2}, "top_k: -2 is not a whole number from -1 to 2147483647"),
        ({"min_p": 1.5}, "min_p: 1.5 is not a number from 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: 0.0 is not a number above 0"),
        ({"presence_penalty": 2.5}, "presence_penalty: 2.5 is not a number from -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty: -3 is not a number from -2 to 2"),
        ({"logit_bias": {3: 101}}, "logit_bias: {3: 101} is not numbers from -100 to 100"),
        ({"logit_bias": {-3: 1}}, "logit_bias: {-3: 1} is not numbers from -100 to 100"),
        ({"allowed_token_ids": []}, "allowed_token_ids: [] is not a list of token ids, at least"),
        ({"allowed_token_ids": [True]}, "allowed_token_ids: [True] is not a list of token ids"),
        ({"bad_words": [""]}, "bad_words: [''] is not a list of texts that are not empty"),
        ({"bad_words_token_ids": [[]]}, "bad_words_token_ids: ((),) is not a list of lists"),
        ({"seed": 2**63}, "seed: 9223372036854775808 is not a whole number"),
        ({"max_tokens": 0}, "max_tokens: 0 is not a whole number from 1 on"),
        ({"min_tokens": 17}, "min_tokens: 17 is not at most max_tokens (16)"),
        ({"logprobs": -2}, "logprobs: -2 is not a whole number from -1 on"),
        ({"prompt_logprobs": True}, "prompt_logprobs: True is not a whole number from -1 on"),
        ({"stop": ["a", ""]}, "stop: ['a', ''] is not a list of texts that are not empty"),
        ({"stop": 5}, "stop: 5 is not a list"),
        ({"stop_token_ids": [-1]}, "stop_token_ids: [-1] is not a list of token ids"),
        ({"ignore_eos": 1}, "ignore_eos: 1 is not true or false"),
    ],
)
def test_a_wrong_value_is_named_with_its_field_and_range(given, said):
    with pytest.raises(ValueError) as caught:
        SamplingParams(**given)
    assert str(caught.value).startswith(said)
    assert caught.value.param == said.partition(":")[0]


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(ValueError, match="… is not a list of token ids") as caught:
        SamplingParams(stop_token_ids=[-1] * 10_000)
    assert len(str(caught.value)) < 200


def test_values_at_the_ends_of_their_ranges_are_taken():
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=0, logprobs=-1, prompt_logprobs=-1)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, min_p=1, logit_bias={0: -100, 1: 100})
    SamplingParams(max_tokens=None, min_tokens=100, seed=-(2**63), n=2, best_of=2, temperature=5)


def test_what_is_decoded_is_checked_too():
    wrong = msgspec.msgpack.encode({"temperature": -1.0})
    with pytest.raises(msgspec.ValidationError, match=r"temperature: -1\.0 is not a number"):
        msgspec.msgpack.decode(wrong, type=SamplingParams)
    params = SamplingParams(logit_bias={5: 1.5}, bad_words_token_ids=[[4]], allowed_token_ids=[7])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {10: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [3, 10]}, "allowed_token_ids"),
        ({"stop_token_ids": [10]}, "stop_token_ids"),
        ({"bad_words_token_ids": [[1], [2, 10]]}, "bad_words"),
    ],
)
def test_a_token_id_that_the_model_lacks_is_named(given, param):
    params = SamplingParams(**given)
    params.check_vocabulary(11)
    with pytest.raises(ValueError, match=r"10 is not a token id of the vocabulary \(0 to 9\)") as e:
        params.check_vocabulary(10)
    assert e.value.param == param


def test_a_field_is_set_later_as_it_is_given():
    params = SamplingParams()
    params.min_tokens = 20
    params.max_tokens = 30
    params.stop = "x"
    params.allowed_token_ids = [3]
    params.allowed_token_ids = None
    assert params == SamplingParams(min_tokens=20, max_tokens=30, stop=["x"])
    with pytest.raises(ValueError, match="temperature: -1 is not a number from 0 on"):
        params.temperature = -1
    with pytest.raises(ValueError, match="stop: 5 is not a list"):
        params.stop = 5
    with pytest.raises(ValueError, match=r"structured_outputs: \{\} is not Structured"):
        params.structured_outputs = {}
    with pytest.raises(AttributeError, match="max_token"):
        params.max_token = 3
    assert params == SamplingParams(min_tokens=20, max_tokens=30, stop=["x"])


def test_lists_are_changed_in_their_place_and_are_nobody_elses():
    given = ["x"]
    params = SamplingParams(stop=given, allowed_token_ids=(4,))
    params.stop.append("y")
    params.stop_token_ids += [7]
    params.bad_words.extend(["no"])
    params.allowed_token_ids.append(5)
    assert (given, SamplingParams().bad_words) == (["x"], [])
    assert params == SamplingParams(
        stop=["x", "y"], stop_token_ids=[7], bad_words=["no"], allowed_token_ids=[4, 5]
    )
    assert params.all_stop_token_ids == {7}
    copy = params.clone()
    copy.stop.append("z")
    assert params.stop == ["x", "y"]
    assert SamplingParams() == msgspec.convert({}, SamplingParams)
    assert msgspec.to_builtins(SamplingParams()) == {}, "what was not given does not travel"


def test_what_two_fields_say_together_is_looked_at_when_they_are_used():
    params = SamplingParams(max_tokens=4)
    params.min_tokens = 5
    with pytest.raises(ValueError, match=r"min_tokens: 5 is not at most max_tokens \(4\)"):
        params.check_together()


def test_a_clone_shares_nothing_that_changes():
    params = SamplingParams(logit_bias={1: 2.0}, stop=["x"])
    copy = params.clone()
    assert copy == params
    copy.logit_bias[1] = 3.0
    assert params.logit_bias == {1: 2.0}
    assert SamplingParams().clone().logit_bias is None


def test_every_sequence_has_the_parameters_and_a_seed_of_its_own():
    params = SamplingParams(n=3, seed=7, top_k=5, logprobs=2)
    children = fan_out(params)
    assert [child.seed for child in children] == [7, 8, 9]
    assert {(child.n, child.best_of, child.top_k, child.logprobs) for child in children} == {
        (1, None, 5, 2)
    }
    assert [child.seed for child in fan_out(SamplingParams(n=2))] == [None, None]
    assert [child.logprobs for child in fan_out(SamplingParams(n=2))] == [None, None]
    scored = fan_out(SamplingParams(n=3, prompt_logprobs=0))
    assert [child.prompt_logprobs for child in scored] == [0, None, None]
    single = SamplingParams(seed=1)
    assert fan_out(single) == [single]
    assert fan_out(SamplingParams(seed=1, best_of=1)) == [single]
    last = fan_out(SamplingParams(n=2, seed=2**63 - 1))
    assert [child.seed for child in last] == [2**63 - 1, -(2**63)]


def test_best_of_generates_more_and_returns_the_likeliest():
    children = fan_out(SamplingParams(n=1, best_of=4))
    assert [child.logprobs for child in children] == [0] * 4
    assert choose_best([-3.0, -1.0, -2.0, -1.0], 3) == [1, 3, 2]
    assert choose_best([-3.0], 1) == [0]


def test_a_kind_of_sampling_and_what_is_left_open():
    kinds = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(seed=1)]
    assert [params.sampling_type.name for params in kinds] == ["GREEDY", "RANDOM", "RANDOM_SEED"]
    given = SamplingParams.from_optional(temperature=0.5, top_p=None, stop=None, max_tokens=3)
    assert given == SamplingParams(temperature=0.5, max_tokens=3)
