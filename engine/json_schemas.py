"""Where the schemas within a JSON schema are. What they mean is the grammar backends'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords that hold a schema; ``items`` may hold a list of them."""
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = (
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
)
"""Keywords that hold an object of schemas: its keys are names, whatever they are."""


def map_schemas(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy of a schema with ``change(each)`` in the place of each schema that stands in it
    immediately. Values of ``enum``, ``const`` and the like are no schemas, and stay.

    Keywords are those of JSON Schema's drafts 4 to 2020-12 (https://json-schema.org/specification).
    """
    changed = dict(schema)
    for keyword, value in schema.items():
        if keyword in _LISTS and isinstance(value, list):
            changed[keyword] = [change(each) for each in value]
        elif keyword in _SCHEMAS:
            changed[keyword] = change(value)
        elif keyword in _NAMED and isinstance(value, dict):
            changed[keyword] = {name: change(each) for name, each in value.items()}
    return changed
