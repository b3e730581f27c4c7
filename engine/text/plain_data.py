"""``PlainData``: what the ecosystem's code calls of the objects of a chat, pydantic models where it
comes from, for our own dataclasses and structs.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec


class PlainData:
    """A base for dataclasses and structs of plain data."""

    __slots__ = ()

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: set[str] | None = None,
        exclude: set[str] | None = None,
        exclude_none: bool = False,
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        by_alias: bool = False,
    ) -> dict[str, Any]:
        """Its fields and those of what it holds, as dicts and lists.

        Args:
            mode: ``"python"`` or ``"json"``, which are one: all of it is JSON.
            include, exclude: fields of the outermost object.
            exclude_none: leave out what is ``None``.
            exclude_unset, exclude_defaults: leave out what is ``None`` or empty, as it is where
                nothing was given.
            by_alias: no field has another name.
        """
        del mode, by_alias
        is_short = exclude_unset or exclude_defaults
        dumped: dict[str, Any] = {
            name: _shown(value, exclude_none or is_short, is_short)
            for name, value in _fields_of(self).items()
            if (include is None or name in include) and name not in (exclude or ())
        }
        return _without(dumped, exclude_none or is_short, is_short)

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """``model_dump`` as text."""
        text = msgspec.json.encode(self.model_dump(**options))
        return (text if indent is None else msgspec.json.format(text, indent=indent)).decode()

    @classmethod
    def model_validate(cls, given: Any) -> Any:
        """Of the fields as a dict; one that is there already is that one.

        Raises:
            msgspec.ValidationError: a ``ValueError``: a struct's fields that are none of its.
        """
        if isinstance(given, cls):
            return given
        return msgspec.convert(given, cls) if issubclass(cls, msgspec.Struct) else cls(**given)

    def model_copy(self, *, update: dict[str, Any] | None = None, deep: bool = False) -> Any:
        """Another one with the same fields, those of ``update`` changed.

        Args:
            deep: the fields are copied too, but for those of ``update``.
        """
        fields = _fields_of(self)
        return type(self)(**{**(copy.deepcopy(fields) if deep else fields), **(update or {})})


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _shown(value: Any, drops_none: bool, drops_empty: bool) -> Any:
    if isinstance(value, PlainData):
        fields = {n: _shown(v, drops_none, drops_empty) for n, v in _fields_of(value).items()}
        return _without(fields, drops_none, drops_empty)
    if isinstance(value, list):
        return [_shown(each, drops_none, drops_empty) for each in value]
    return msgspec.to_builtins(value)


def _without(fields: dict[str, Any], drops_none: bool, drops_empty: bool) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if not (value is None and drops_none) and not (value in ([], {}) and drops_empty)
    }
