"""What a request may say of the form of its text, how wrong ones are named, and what a backend is
given."""

from __future__ import annotations

import json

import msgspec
import pytest

from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.structured_outputs import (
    MAX_CHOICES,
    MAX_DEPTH,
    MAX_REGEX_BYTES,
    MAX_SPEC_BYTES,
    StructuredOutputsParams,
    close_objects,
)


def nested(levels: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "structured_outputs: 'nothing' is not exactly one of json, regex,"),
        ({"json_object": False}, "structured_outputs: 'nothing' is not exactly one of"),
        ({"json": {}, "regex": "a"}, "structured_outputs: 'json and regex' is not exactly one"),
        ({"json": 5}, "structured_outputs.json: 5 is not a JSON schema or its text"),
        ({"regex": 5}, "structured_outputs.regex: 5 is not a text that is not empty"),
        ({"grammar": ""}, "structured_outputs.grammar: '' is not a text that is not empty"),
        ({"choice": []}, "structured_outputs.choice: [] is not a list of texts, at least one"),
        ({"choice": [""]}, "structured_outputs.choice: [''] is not a list of texts"),
        ({"choice": "ab"}, "structured_outputs.choice: 'ab' is not a list of texts"),
        ({"json_object": 1}, "structured_outputs.json_object: 1 is not true or false"),
        (
            {"regex": "a", "disable_any_whitespace": True},
            "structured_outputs.disable_any_whitespace: True is not false, which it must be beside "
            "regex",
        ),
        (
            {"json_object": True, "lenient": True},
            "structured_outputs.lenient: True is not false, which it must be beside json_object",
        ),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "structured_outputs.whitespace_pattern: ' ' is not null, which it must be beside "
            "disable_any_whitespace",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_field(given, said):
    with pytest.raises(ValueError) as caught:
        StructuredOutputsParams(**given)
    assert str(caught.value).startswith(said)
    assert caught.value.param == said.partition(":")[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"json": "{"}, "structured_outputs.json: '{' is not the text of a JSON schema"),
        ({"json": "[1]"}, "structured_outputs.json: [1] is not a JSON schema (an object)"),
        ({"json": '"' * (MAX_SPEC_BYTES + 1)}, "structured_outputs.json: '131073 characters'"),
        ({"json": {"const": "é" * MAX_SPEC_BYTES}}, "structured_outputs.json: '262157 bytes'"),
        ({"json": {"const": float("nan")}}, "structured_outputs.json: {'const': nan} is not"),
        ({"json": {"const": {1}}}, "structured_outputs.json: {'const': {1}} is not a schema of"),
        ({"json": nested(MAX_DEPTH)}, "structured_outputs.json: {'items': {'items'"),
        ({"json": {"const": "\ud83d"}}, "structured_outputs.json: "),
        ({"regex": "a" * (MAX_REGEX_BYTES + 1)}, "structured_outputs.regex: '8193 bytes'"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice: '1025 texts'"),
        ({"grammar": "\ud83d"}, "structured_outputs.grammar: "),
    ],
)
def test_what_no_backend_could_take_is_refused_before_one_is_asked(given, said):
    params = StructuredOutputsParams(**given)
    with pytest.raises(ValueError) as caught:
        params.spec()
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 300
    assert caught.value.param == params.path


def test_the_text_of_a_schema_and_the_schema_are_one_spec():
    schema = {"type": "object", "properties": {"z": {"enum": ["é"]}, "a": {}}}
    given = StructuredOutputsParams(json=schema).spec()
    assert given == StructuredOutputsParams(json=json.dumps(schema)).spec()
    assert given.kind == "json"
    assert list(json.loads(given.text)["properties"]) == ["z", "a"]
    StructuredOutputsParams(json=nested(MAX_DEPTH - 1)).spec()


def test_each_form_becomes_its_kind():
    assert StructuredOutputsParams(choice=["a", "b"]).spec().text == '["a", "b"]'
    assert StructuredOutputsParams(json_object=True).spec().text == '{"type": "object"}'
    assert StructuredOutputsParams(regex="a+").spec().kind == "regex"
    assert StructuredOutputsParams(grammar='root ::= "a"').spec().text == 'root ::= "a"'
    tight = StructuredOutputsParams(json={}, disable_any_whitespace=True, lenient=True).spec()
    assert (tight.any_whitespace, tight.lenient) == (False, True)
    spaced = StructuredOutputsParams(json={}, whitespace_pattern=" ?").spec()
    assert (spaced.any_whitespace, spaced.whitespace_pattern) == (True, " ?")


def test_objects_are_closed_where_they_list_properties_and_values_stay():
    schema = {
        "properties": {"properties": {"items": [{"properties": {}}]}},
        "anyOf": [{"patternProperties": {}}, {"properties": {}, "additionalProperties": True}],
        "enum": [{"properties": 1}],
        "additionalProperties": {"properties": {}},
    }
    closed = {"properties": {}, "additionalProperties": False}
    assert close_objects(schema) == {
        "properties": {"properties": {"items": [closed]}},
        "anyOf": [
            {"patternProperties": {}, "additionalProperties": False},
            {"properties": {}, "additionalProperties": True},
        ],
        "enum": [{"properties": 1}],
        "additionalProperties": closed,
    }
    params = StructuredOutputsParams(json={"properties": {}}, disable_additional_properties=True)
    assert json.loads(params.spec().text) == closed


def test_it_travels_with_the_parameters_of_a_request():
    form = StructuredOutputsParams(json={"type": "object"}, whitespace_pattern=" ?")
    params = SamplingParams(structured_outputs=form)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert params.clone().structured_outputs == form
    assert params.clone().structured_outputs is not form
    with pytest.raises(ValueError, match=r"structured_outputs: .* is not StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})
