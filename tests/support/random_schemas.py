"""Random JSON schemas of which every value ends: for models that end nothing by themselves.

Texts, lists, patterns and whole numbers are bounded, further properties are excluded, and numbers
with a decimal point come from lists alone. ``longest`` says how long the longest value may get.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

CLASSES = ("nesting", "array", "enum", "anyOf", "$ref", "pattern", "bounds", "required")
"""What a schema may hold; ``nesting``: objects or lists four levels deep."""
DEPTH = 4
BYTES_OF_CHARACTER = 12
"""Of one beyond 16 bits, written as two escapes."""
PATTERNS = {
    "^[a-z]{2,5}$": 5,
    "^[A-F][0-9]{1,4}$": 5,
    "^(ab|cde){1,3}$": 9,
    "^\\d{3}-\\d{2}$": 6,
}
"""And the characters of the longest match."""
VALUES = ("red", "größe", 'a "b"', "日本", "", 0, -7, 12.5, 0.001, True, False, None)


class SchemaMaker:
    """One schema: ``schema``, and in ``classes`` how often it holds what."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.classes: Counter[str] = Counter()
        self.defs: dict[str, Any] = {}
        # One of eight has each class for certain, whatever else it has.
        self.wanted = CLASSES[seed % len(CLASSES)]
        root = self._object(1)
        if self.wanted not in self.classes:
            root["properties"]["wanted"] = self._wanted()
            root["required"] = [*root.get("required", []), "wanted"]
            self.classes["required"] += 1
        if self.defs:
            root["$defs"] = self.defs
        self.schema: dict[str, Any] = root

    def _wanted(self) -> dict[str, Any]:
        if self.wanted == "nesting":
            inner = self._nested(DEPTH, lambda: {"type": "boolean"})
            return self._nested(2, lambda: self._nested(3, lambda: inner))
        makers = {
            "array": lambda: self._array(DEPTH - 1),
            "enum": self._enum,
            "anyOf": lambda: self._any_of(DEPTH - 1),
            "$ref": self._ref,
            "pattern": self._pattern,
            "bounds": self._whole,
            "required": lambda: self._object(DEPTH),
        }
        return makers[self.wanted]()

    def _nested(self, depth: int, make: Any) -> dict[str, Any]:
        self._note_depth(depth)
        self.classes["required"] += 1
        return {
            "type": "object",
            "properties": {"in": make()},
            "required": ["in"],
            "additionalProperties": False,
        }

    def _note_depth(self, depth: int) -> None:
        if depth == DEPTH:
            self.classes["nesting"] += 1

    def _value(self, depth: int) -> dict[str, Any]:
        leaves = [self._text, self._whole, self._enum, self._pattern, self._const, self._ref]
        if depth > DEPTH:
            return self.random.choice(leaves)()
        inner = [self._object, self._array, self._any_of]
        if self.random.random() < 0.45:
            return self.random.choice(inner)(depth)
        return self.random.choice(leaves)()

    def _object(self, depth: int) -> dict[str, Any]:
        self._note_depth(depth)
        count = self.random.randint(1, 3 if depth < 3 else 2)
        properties = {f"p{at}": self._value(depth + 1) for at in range(count)}
        required = [name for name in properties if self.random.random() < 0.7]
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            self.classes["required"] += 1
            schema["required"] = required
        return schema

    def _array(self, depth: int) -> dict[str, Any]:
        self.classes["array"] += 1
        self._note_depth(depth)
        least = self.random.randint(0, 2)
        return {
            "type": "array",
            "items": self._value(max(depth + 1, DEPTH)),
            "minItems": least,
            "maxItems": least + self.random.randint(0, 1),
        }

    def _any_of(self, depth: int) -> dict[str, Any]:
        self.classes["anyOf"] += 1
        return {"anyOf": [self._value(depth + 1), self._value(DEPTH + 1)]}

    def _enum(self) -> dict[str, Any]:
        self.classes["enum"] += 1
        return {"enum": self.random.sample(VALUES, self.random.randint(1, 4))}

    def _const(self) -> dict[str, Any]:
        return {"const": self.random.choice(VALUES)}

    def _ref(self) -> dict[str, Any]:
        self.classes["$ref"] += 1
        if not self.defs or self.random.random() < 0.5:
            self.defs[f"d{len(self.defs)}"] = self._pattern()
        return {"$ref": f"#/$defs/{self.random.choice(list(self.defs))}"}

    def _pattern(self) -> dict[str, Any]:
        self.classes["pattern"] += 1
        return {"type": "string", "pattern": self.random.choice(list(PATTERNS))}

    def _text(self) -> dict[str, Any]:
        least = self.random.randint(0, 3)
        return {
            "type": "string",
            "minLength": least,
            "maxLength": least + self.random.randint(0, 5),
        }

    def _whole(self) -> dict[str, Any]:
        self.classes["bounds"] += 1
        low = self.random.randint(-2000, 2000)
        kind = self.random.choice(["minimum", "exclusiveMinimum"])
        return {"type": "integer", kind: low, "maximum": low + self.random.randint(1, 3000)}


def longest(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    """Bytes of the longest value, without white space; at least so many."""
    if "$ref" in schema:
        return longest(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return max(longest(each, defs) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return 6 * max(len(json.dumps(value)) for value in values)
    if schema["type"] == "object":
        properties = schema["properties"].items()
        return 2 + sum(len(name) + 4 + longest(each, defs) for name, each in properties)
    if schema["type"] == "array":
        return 2 + schema["maxItems"] * (1 + longest(schema["items"], defs))
    if schema["type"] == "string":
        length = PATTERNS[schema["pattern"]] if "pattern" in schema else schema["maxLength"]
        return 2 + BYTES_OF_CHARACTER * length
    return 6
