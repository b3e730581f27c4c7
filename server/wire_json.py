"""Decoding a JSON body into a typed request: which fields are known, and what is said of others.

Each request type brings its own table of fields that are known but not built yet; the types
themselves are in ``wire_completions`` and ``wire_chat``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from .errors import ApiError, bad_request, cut, nearest

T = TypeVar("T", bound=msgspec.Struct)

UNUSED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prediction",
    }
)
"""Fields of the OpenAI API that mean nothing on one's own server. They are accepted, and named in
the reply header ``x-hookserve-unused``."""

_RAW_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(
    dict[str, msgspec.Raw]
)
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_FIELD = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")
_ENUM = re.compile(r"Invalid enum value ")
_STEP = re.compile(r"[^.\[\]]+")
_OWN_PATH = re.compile(r"(?P<path>[\w.\[\]]+): ")
_NO_INT = re.compile(r"Expected `int[^`]*`, got `float`")
_MAX_WHOLE = 2**53
"""Up to here every whole number is a float as well."""


class RequestDecoder:
    """Decodes one request type.

    Attributes:
        struct: the type; its fields are the ones that act.
        not_built: known fields that do not act yet, with the values that change nothing and are
            therefore accepted (``null`` always is).
    """

    def __init__(self, struct: type[T], not_built: Mapping[str, Sequence[Any]]) -> None:
        self.struct: type[msgspec.Struct] = struct
        self.not_built = not_built
        self._decoder = msgspec.json.Decoder(struct)
        self._fields = frozenset(struct.__struct_fields__)
        overlap = self._fields & not_built.keys()
        assert not overlap, f"fields both built and not built: {overlap}"

    def decode(self, body: bytes) -> tuple[Any, list[str]]:
        """Return the request and the names of accepted fields without effect.

        Raises:
            ApiError: 400, with the path of the field in ``param``.
        """
        try:
            text_is_utf8(body)
            raw = _RAW_FIELDS.decode(body)
            unused = self._check_names(raw)
            return self._decode_fields(body, raw), unused
        except RecursionError:
            raise bad_request("the body is nested too deeply", code="invalid_json") from None
        except msgspec.ValidationError as error:
            raise _invalid_field(str(error), body, self.struct) from None
        except msgspec.DecodeError as error:
            raise bad_request(
                f"the body is not valid JSON: {cut(str(error))}", code="invalid_json"
            ) from None

    def _decode_fields(self, body: bytes, raw: Mapping[str, msgspec.Raw]) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            if not _NO_INT.match(str(error)):
                raise
        return self._decoder.decode(msgspec.json.encode(_with_whole_numbers(raw)))

    def _check_names(self, raw: Mapping[str, msgspec.Raw]) -> list[str]:
        unused = []
        for name, value in raw.items():
            if name in self._fields:
                continue
            if name in UNUSED_FIELDS:
                unused.append(name)
            elif name in self.not_built:
                self._check_no_op(name, value)
            else:
                known = self._fields | self.not_built.keys() | UNUSED_FIELDS
                raise bad_request(
                    f"unknown field {cut(name)!r}{nearest(name, known)}",
                    param=cut(name),
                    code="unknown_field",
                )
        return unused

    def _check_no_op(self, name: str, raw: msgspec.Raw) -> None:
        try:
            value = msgspec.json.decode(raw)
        except msgspec.ValidationError as error:  # a number beyond every type
            raise bad_request(f"{name}: {error}", param=name, code="invalid_value") from None
        accepted = self.not_built[name]
        if value is None or any(_same(value, other) for other in accepted):
            return
        raise bad_request(
            f"the field {name!r} is not supported yet; leave it out (given: {cut(value)})",
            param=name,
            code="unsupported_field",
        )


def text_is_utf8(body: bytes) -> None:
    """Raise the 400 for a body that is not UTF-8; skipped parts are looked at too."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request(
            f"the body is not valid UTF-8 (byte {error.start})", code="invalid_utf8"
        ) from None


def _with_whole_numbers(raw: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """The fields with 5 for 5.0, which is the same number: some languages write no other."""
    whole: dict[str, Any] = dict(raw)
    for name, value in raw.items():
        if bytes(value)[:1] in b"-0123456789":
            number = msgspec.json.decode(value)
            if isinstance(number, float) and number.is_integer() and abs(number) <= _MAX_WHOLE:
                whole[name] = int(number)
    return whole


def _same(value: Any, other: Any) -> bool:
    """Equality in which ``false`` is not 0 (as it is in Python) but 1.0 is 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _invalid_field(message: str, body: bytes, struct: type[msgspec.Struct]) -> ApiError:
    match = _PATH.search(message)
    if match is None:
        return bad_request(cut(message), code="invalid_type")
    path = match["path"].removesuffix("[...]")  # msgspec does not say which key of an object
    reason = message[: match.start()]
    field = _FIELD.match(reason)
    if field is not None:
        path = f"{path}.{cut(field['name'])}"
        if "missing" in field[0]:
            return bad_request(f"{path}: it is required", param=path, code="missing_field")
        return bad_request(f"{path}: unknown field", param=path, code="unknown_field")
    own = _OWN_PATH.match(reason)
    if own is not None and own["path"].startswith(path):  # the type's own check, which knows more
        return bad_request(cut(reason), param=own["path"], code="invalid_value")
    if _ENUM.match(reason):  # that has all of the client's value, and not the known ones
        reason = f"expected one of {', '.join(map(repr, _known_values(struct, path)))}"
    given = _value_at(body, path)
    return bad_request(f"{path}: {reason}{given}", param=path, code="invalid_value")


def _known_values(struct: type[msgspec.Struct], path: str) -> list[Any]:
    """Of the enumerations at msgspec's path."""
    from msgspec import inspect

    def each(kind: inspect.Type) -> list[inspect.Type]:
        if isinstance(kind, inspect.Metadata):  # what only a document says of it
            return each(kind.type)
        if isinstance(kind, inspect.UnionType):
            return [one for member in kind.types for one in each(member)]
        return [kind]

    kinds = [inspect.type_info(struct)]
    for step in _STEP.findall(path):
        inner: list[inspect.Type] = []
        for kind in kinds:
            if isinstance(kind, inspect.StructType):
                inner += [field.type for field in kind.fields if field.encode_name == step]
            elif isinstance(kind, inspect.ListType):
                inner.append(kind.item_type)
        kinds = [one for kind in inner for one in each(kind)]
    return [v for kind in kinds if isinstance(kind, inspect.LiteralType) for v in kind.values]


def _value_at(body: bytes, path: str) -> str:
    """``" (given: …)"`` for the value at msgspec's path, or nothing where it cannot be shown."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""  # a number beyond every type, or a part of the body that nobody wants
    for step in _STEP.findall(path):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            return ""
    return f" (given: {cut(value)})"
