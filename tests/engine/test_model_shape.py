"""Which values of a model's configuration are refused, and the length that they add up to."""

from __future__ import annotations

from typing import Any

import pytest

from hookserve.engine.model_shape import find_length, find_wrong_fields, value_at
from tiny_llama import config

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": {}, "rope_parameters": None},
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5, "original_max_position_embeddings": 8192}},
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4]}},
        {"rope_parameters": {"full_attention": LLAMA3, "sliding_attention": {"rope_theta": 1e4}}},
        {"rope_scaling": {"type": "yarn", "factor": None, "mscale": 0, "truncate": False}},
        {"sliding_window": None, "layer_types": ["full_attention"] * 2, "max_window_layers": 0},
        {"tie_word_embeddings": None, "attn_logit_softcapping": None, "hidden_act": "mish"},
        {"partial_rotary_factor": 0.5, "what_nobody_reads": "x"},
    ],
)
def test_what_is_right(changes: dict[str, Any]) -> None:
    assert list(find_wrong_fields(config() | changes)) == []


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"rope_scaling": 1}, "rope_scaling", "an object, or null"),
        ({"rope_parameters": ["linear"]}, "rope_parameters", "an object, or null"),
        ({"rope_scaling": {"type": 3}}, "rope_scaling.type", "a name"),
        ({"rope_scaling": {"rope_type": ""}}, "rope_scaling.rope_type", "a name"),
        (
            {"rope_scaling": {"type": "linear", "factor": 0}},
            "rope_scaling.factor",
            "a number above 0, at most 1000000",
        ),
        (
            {"rope_scaling": {"factor": "4"}},
            "rope_scaling.factor",
            "a number above 0, at most 1000000",
        ),
        (
            {"rope_scaling": {"type": "dynamic"}},
            "rope_scaling.factor",
            "a number above 0, which rope type 'dynamic' needs",
        ),
        (
            {"rope_parameters": LLAMA3 | {"low_freq_factor": None}},
            "rope_parameters.low_freq_factor",
            "a number above 0, which rope type 'llama3' needs",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": -1}}},
            "rope_parameters.full_attention.rope_theta",
            "a number above 0",
        ),
        ({"rope_scaling": {"mscale": -1}}, "rope_scaling.mscale", "a number, at least 0"),
        ({"rope_scaling": {"truncate": 1}}, "rope_scaling.truncate", "true or false"),
        (
            {"rope_scaling": {"original_max_position_embeddings": 0}},
            "rope_scaling.original_max_position_embeddings",
            "a whole number from 1 to 1000000000",
        ),
        (
            {"partial_rotary_factor": 1.5},
            "partial_rotary_factor",
            "a number above 0, at most 1",
        ),
        ({"rms_norm_eps": None}, "rms_norm_eps", "a number above 0"),
        ({"intermediate_size": None}, "intermediate_size", "a number above 0"),
        ({"query_pre_attn_scalar": None}, "query_pre_attn_scalar", "a number above 0"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps", "a number above 0"),
        ({"rope_theta": 10**400}, "rope_theta", "a number above 0"),
        ({"final_logit_softcapping": 0}, "final_logit_softcapping", "a number above 0"),
        ({"sliding_window": "8"}, "sliding_window", "a whole number from 1 to 1000000000"),
        ({"max_window_layers": -1}, "max_window_layers", "a whole number from 0 to 10000"),
        (
            {"layer_types": ["full_attention"]},
            "layer_types",
            "a list of 2 names, one for each layer",
        ),
        ({"layer_types": [1, 2]}, "layer_types", "a list of 2 names, one for each layer"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
        ({"attention_bias": 0}, "attention_bias", "true or false"),
        ({"hidden_act": 5}, "hidden_act", "a name"),
    ],
)
def test_what_is_wrong_is_named_with_what_was_expected(
    changes: dict[str, Any], key: str, expected: str
) -> None:
    assert list(find_wrong_fields(config() | changes)) == [(key, expected)]


def test_a_value_is_found_inside_its_table() -> None:
    table = {"a": {"b": None}, "c": 1}
    assert value_at(table, "a.b") == (True, None)
    assert value_at(table, "a.x") == (False, None)
    assert value_at(table, "c.x") == (False, None)
    assert value_at(table, "c") == (True, 1)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({}, 512),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": None, "n_ctx": 99}, 99),
        ({"rope_scaling": {"type": "linear", "factor": 1.5}}, 768),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 1024),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 1e6}}, 512 * 10**6),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, 1024),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            256,
        ),
        ({"rope_parameters": {"rope_type": "yarn", "factor": None}}, 512),
        ({"rope_parameters": LLAMA3}, 512),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, 512),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, 512),
    ],
)
def test_the_length_counts_the_rotations_scaling(
    changes: dict[str, Any], length: int | None
) -> None:
    assert find_length(config() | changes) == length
