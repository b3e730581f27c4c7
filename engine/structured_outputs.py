"""``StructuredOutputsParams``: the form that one request's text must have, as its caller says it.

What a form means as a grammar is a backend's (hook ``grammar_backend``); ``spec`` is what it is
given. Here only what can be said without one is checked: which fields go together, and sizes.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hookserve.hookspecs.grammar_types import GrammarSpec

from .json_schemas import map_schemas
from .sampling_rules import SamplingParamsError

MAX_SPEC_BYTES = 128 * 2**10
"""Of a schema, a grammar, or all choices together, as UTF-8."""
MAX_REGEX_BYTES = 8 * 2**10
"""Of a regular expression, as UTF-8."""
MAX_CHOICES = 1024
MAX_DEPTH = 64
"""Levels of objects and lists in a schema."""

FORMS = ("json", "regex", "choice", "grammar", "json_object")


class StructuredOutputsParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Names are the ecosystem's (vLLM's). Exactly one of ``json``, ``regex``, ``choice``,
    ``grammar`` and ``json_object`` is given.

    Raises:
        SamplingParamsError: a ``ValueError`` that names the field, for a value that cannot be.
    """

    json: dict[str, Any] | str | None = None
    """A JSON schema, or its text."""
    regex: str | None = None
    """The whole text matches it."""
    choice: list[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """In the language of the backend: for the built-in one Lark, or GBNF (``root ::= …``)."""
    json_object: bool | None = None
    """True: any JSON object."""
    whitespace_pattern: str | None = None
    """A regular expression for what may stand between the tokens of JSON."""
    disable_any_whitespace: bool = False
    """Nothing may stand there."""
    disable_additional_properties: bool = False
    """Objects of the schema that say nothing about further properties have none."""
    lenient: bool = False
    """Keywords of the schema that the backend cannot hold to are passed over, not refused."""

    def __post_init__(self) -> None:
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            is_text = isinstance(value, str) and bool(value)
            self._check(name, value is None or is_text, "a text that is not empty")
        self._check("json", isinstance(self.json, dict | str | None), "a JSON schema or its text")
        self._check("json_object", isinstance(self.json_object, bool | None), "true or false")
        for name in ("disable_any_whitespace", "disable_additional_properties", "lenient"):
            self._check(name, type(getattr(self, name)) is bool, "true or false")
        if self.choice is not None:
            is_list = isinstance(self.choice, list | tuple)
            texts = is_list and all(type(each) is str and each for each in self.choice)
            self._check("choice", bool(texts and self.choice), "a list of texts, at least one")
            msgspec.structs.force_setattr(self, "choice", list(self.choice))
        self._check_together()

    def _check(self, name: str, accepts: bool, expected: str) -> None:
        if not accepts:
            raise SamplingParamsError(_path(name), getattr(self, name), expected)

    def _check_together(self) -> None:
        given = [name for name in FORMS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            said = " and ".join(given) or "nothing"
            raise SamplingParamsError(
                "structured_outputs", said, f"exactly one of {', '.join(FORMS)}"
            )
        if given[0] not in ("json", "json_object"):
            for name in ("whitespace_pattern", "disable_any_whitespace"):
                self._check_default(name, given[0])
        if given[0] != "json":
            for name in ("disable_additional_properties", "lenient"):
                self._check_default(name, given[0])
        if self.disable_any_whitespace:
            self._check_default("whitespace_pattern", "disable_any_whitespace")

    def _check_default(self, name: str, beside: str) -> None:
        default = "null" if name == "whitespace_pattern" else "false"
        self._check(name, not getattr(self, name), f"{default}, which it must be beside {beside}")

    @property
    def form(self) -> str:
        """The one of ``FORMS`` that is given."""
        return next(name for name in FORMS if getattr(self, name) not in (None, False))

    @property
    def is_too_deep(self) -> bool:
        """Whether ``spec`` refuses the schema for its levels; it may have more than can be copied.
        Of a schema that came as a text ``spec`` alone can say so."""
        return is_deeper(self.json, MAX_DEPTH)

    @property
    def path(self) -> str:
        """What messages call that field."""
        return _path(self.form)

    def spec(
        self, *, any_whitespace: bool = True, additional_properties: bool = True
    ) -> GrammarSpec:
        """What a backend is given.

        Args:
            any_whitespace, additional_properties: false: not where this server allows none.

        Raises:
            SamplingParamsError: a text that is too long, too deep, or no JSON.
        """
        text = self._text(additional_properties and not self.disable_additional_properties)
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError:
            raise SamplingParamsError(self.path, ascii(text), "a text without surrogates") from None
        limit = MAX_REGEX_BYTES if self.form == "regex" else MAX_SPEC_BYTES
        if num_bytes > limit:
            raise SamplingParamsError(self.path, f"{num_bytes} bytes", f"at most {limit} bytes")
        return GrammarSpec(
            self.form,
            text,
            whitespace_pattern=self.whitespace_pattern,
            any_whitespace=not self.disable_any_whitespace
            and (any_whitespace or self.whitespace_pattern is not None),
            lenient=self.lenient,
        )

    def _text(self, additional_properties: bool) -> str:
        if self.json is not None:
            return self._schema_text(self.json, additional_properties)
        if self.choice is not None:
            if len(self.choice) > MAX_CHOICES:
                expected = f"at most {MAX_CHOICES} texts"
                raise SamplingParamsError(self.path, f"{len(self.choice)} texts", expected)
            return json.dumps(self.choice, ensure_ascii=False)
        return self.regex or self.grammar or json.dumps({"type": "object"})

    def _schema_text(self, schema: dict[str, Any] | str, additional_properties: bool) -> str:
        if isinstance(schema, str):
            if len(schema) > MAX_SPEC_BYTES:
                expected = f"at most {MAX_SPEC_BYTES} bytes"
                raise SamplingParamsError(self.path, f"{len(schema)} characters", expected)
            try:
                schema = msgspec.json.decode(schema.encode("utf-8", "surrogatepass"))
            except (msgspec.DecodeError, RecursionError):
                raise SamplingParamsError(self.path, schema, "the text of a JSON schema") from None
        if not isinstance(schema, dict):
            raise SamplingParamsError(self.path, schema, "a JSON schema (an object)")
        if is_deeper(schema, MAX_DEPTH):
            raise SamplingParamsError(self.path, schema, f"a schema of {MAX_DEPTH} levels at most")
        if not additional_properties:
            schema = close_objects(schema)
        try:
            # The order of keys is the order of properties in the text.
            return json.dumps(schema, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError):
            raise SamplingParamsError(self.path, schema, "a schema of JSON values") from None


def _path(name: str) -> str:
    return f"structured_outputs.{name}"


def is_deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists lie in one another more than so many levels deep."""
    if isinstance(value, dict):
        return levels == 0 or any(is_deeper(each, levels - 1) for each in value.values())
    if isinstance(value, list | tuple):
        return levels == 0 or any(is_deeper(each, levels - 1) for each in value)
    return False


def close_objects(schema: Any) -> Any:
    """A copy of a JSON schema in which an object that lists properties has no others, unless it
    says so."""
    if not isinstance(schema, dict):
        return schema
    closed = map_schemas(schema, close_objects)
    if "properties" in schema or "patternProperties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
