"""How a request says which form its text must have: ``structured_outputs``, OpenAI's
``response_format``, and the older ``guided_*``.

What can be said in one form alone is ``engine.structured_outputs``' to check; whether there is such
a grammar, ``grammar_questions``'.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from hookserve.engine.sampling_rules import SamplingParamsError
from hookserve.engine.structured_outputs import StructuredOutputsParams
from hookserve.engine.text.plain_data import PlainData

from .errors import ApiError, bad_request, cut

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
"""Older fields to those of ``structured_outputs``."""
FIELDS = ("structured_outputs", "response_format", *_GUIDED)


class SchemaFormat(PlainData, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")]
    """For the client's own use, as ``description``."""
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """False: keywords that cannot be held to are passed over; else the request is refused."""

    @property
    def json_schema(self) -> dict[str, Any]:
        """The ecosystem's name of ``schema``, for parsers."""
        return self.schema


class ResponseFormat(PlainData, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class FormFields(msgspec.Struct, frozen=True, kw_only=True):
    """At most one of them is given."""

    structured_outputs: StructuredOutputsParams | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def form_of(fields: FormFields) -> StructuredOutputsParams | None:
    """The form that is asked for, if there is one.

    Raises:
        ApiError: 400 for two of them, or one that cannot be.
    """
    given = _given(fields)
    if len(given) > 1:
        raise bad_request(
            f"{given[1]}: {given[0]} is given too; one form is all that a text can have",
            param=given[1],
            code="invalid_value",
        )
    if not given:
        return None
    try:
        return _read(fields, given[0])
    except SamplingParamsError as error:
        raise form_refused(error, path_of(fields)) from None


def _given(fields: FormFields) -> list[str]:
    given = [name for name in FIELDS if getattr(fields, name) is not None]
    wanted = fields.response_format
    if wanted is not None and wanted.type == "text":
        if wanted.json_schema is not None:
            raise _no_schema("text")
        given.remove("response_format")
    return given


def _read(fields: FormFields, name: str) -> StructuredOutputsParams | None:
    if name == "structured_outputs":
        return fields.structured_outputs
    if name != "response_format":
        return StructuredOutputsParams(**{_GUIDED[name]: getattr(fields, name)})
    wanted = fields.response_format
    assert wanted is not None, "it is given"
    schema = wanted.json_schema
    if wanted.type == "json_object":
        if schema is not None:
            raise _no_schema("json_object")
        return StructuredOutputsParams(json_object=True)
    if schema is None:
        raise bad_request(
            "response_format.json_schema: it is required where type is json_schema",
            param="response_format.json_schema",
            code="missing_field",
        )
    return StructuredOutputsParams(json=schema.schema, lenient=schema.strict is False)


def _no_schema(kind: str) -> ApiError:
    path = "response_format.json_schema"
    return bad_request(f"{path}: the type {kind!r} has none", param=path, code="invalid_value")


def path_of(fields: FormFields) -> str:
    """What the client calls the form. One that it has not asked for comes from its tools."""
    given = _given(fields)
    if not given:
        return "tools"
    if given[0] == "structured_outputs":
        assert fields.structured_outputs is not None, "it is given"
        return fields.structured_outputs.path
    wanted = fields.response_format
    if wanted is not None and wanted.json_schema is not None:
        return "response_format.json_schema.schema"
    return given[0]


def form_refused(error: SamplingParamsError, path: str) -> ApiError:
    """400 for what ``StructuredOutputsParams`` says, at the client's own field."""
    said = str(error).partition(": ")[2]
    return bad_request(f"{path}: {cut(said)}", param=path, code="invalid_value")
