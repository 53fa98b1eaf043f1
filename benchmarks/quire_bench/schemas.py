"""JSON schemas of many kinds, reproducible from a seed: what an output must match, for tests and benchmarks.

Twenty families, each with variants of random sizes and bounds. Knows no server and no validator.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

_NAMES = [
    "name", "age", "city", "email", "title", "count", "price", "tags", "items", "note", "code", "level", "status",
    "width", "ratio", "owner",
]  # fmt: skip
_UNICODE = [
    "größe",
    "naïve",
    "名前",
    "цена",
    "ключ",
    "emoji 😀",
    'quo"te',
    "back\\slash",
    "tab\tbed",
    "ñandú",
]


def schemas(count: int = 200, seed: int = 1) -> list[tuple[str, Schema]]:
    """`count` schemas with the names of their families, every family in turn."""
    families = list(_FAMILIES.items())
    found = []
    for number in range(count):
        name, make = families[number % len(families)]
        found.append((name, make(random.Random(f"{seed}/{number}"))))
    return found


def _closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


def _names(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.sample(_NAMES, rng.randint(low, high))


def _scalar(rng: random.Random) -> Schema:
    bound = rng.randint(1, 1000)
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(3, 20)},
            {"type": "integer", "minimum": -bound, "maximum": bound},
            {"type": "number", "minimum": 0, "maximum": bound},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": rng.sample(_NAMES, 3)},
        ]
    )


def _flat(rng: random.Random) -> Schema:
    return _closed({name: _scalar(rng) for name in _names(rng, 2, 5)})


def _nested(rng: random.Random) -> Schema:
    schema = _scalar(rng)
    for name in _names(rng, 2, 4):
        schema = _closed({name: schema, "id": {"type": "integer", "minimum": 0, "maximum": 99}})
    return schema


def _optional(rng: random.Random) -> Schema:
    properties = {name: _scalar(rng) for name in _names(rng, 3, 6)}
    return _closed(properties, required=list(properties)[: rng.randint(0, 2)])


def _enum(rng: random.Random) -> Schema:
    values: list[Any] = [*rng.sample(_UNICODE, 3), rng.randint(0, 9), None, True, 1.5, ["a", 1]]
    rng.shuffle(values)
    return _closed({"kind": {"enum": values[:5]}, "always": {"const": values[5]}})


def _pattern(rng: random.Random) -> Schema:
    patterns = [
        "^[A-Z]{2}-[0-9]{3,5}$", "^(red|green|blue)(ish)?$", "^[a-f0-9]{8}$", "^\\+?[0-9]{2} [0-9]{4,6}$",
        "^[A-Za-z_][A-Za-z0-9_]{0,10}$", "^v[0-9]+\\.[0-9]+$", "^[^aeiou]{1,6}$",
    ]  # fmt: skip
    return _closed({name: {"type": "string", "pattern": rng.choice(patterns)} for name in _names(rng, 1, 3)})


def _reference(rng: random.Random) -> Schema:
    point = _closed({"x": {"$ref": "#/$defs/value"}, "y": {"$ref": "#/$defs/value"}})
    value = {"type": "integer", "minimum": 0, "maximum": rng.randint(9, 999)}
    ends: Schema = {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}
    return {**_closed(ends), "$defs": {"point": point, "value": value}}


def _recursive(rng: random.Random) -> Schema:
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": rng.randint(1, 2)}
    node = _closed({"value": _scalar(rng), "children": children}, required=["value"])
    return {"$ref": "#/$defs/node", "$defs": {"node": node}}


def _any_of(rng: random.Random) -> Schema:
    return _closed({name: {"anyOf": [_scalar(rng), _flat(rng)]} for name in _names(rng, 1, 2)})


def _one_of(rng: random.Random) -> Schema:
    options = [_closed({"kind": {"const": kind}, "value": _scalar(rng)}) for kind in rng.sample(_NAMES, 3)]
    return {"oneOf": options}


def _types(rng: random.Random) -> Schema:
    kinds = rng.sample(["integer", "boolean", "null", "string"], 2)
    return _closed(
        {name: {"type": kinds, "minimum": 0, "maximum": 50, "maxLength": 8} for name in _names(rng, 1, 3)}
    )


def _bounds(rng: random.Random) -> Schema:
    low = rng.randint(-500, 500)
    bounds: list[Schema] = [
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 7},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "number", "minimum": low - 0.5, "exclusiveMaximum": low + 10.25},
        {"type": "integer", "multipleOf": rng.choice([2, 5, 10]), "minimum": 0, "maximum": 1000},
    ]
    return _closed({name: rng.choice(bounds) for name in _names(rng, 2, 4)})


def _array(rng: random.Random) -> Schema:
    low = rng.randint(0, 3)
    return _closed(
        {
            "list": {
                "type": "array",
                "items": _scalar(rng),
                "minItems": low,
                "maxItems": low + rng.randint(0, 3),
            }
        }
    )


def _tuple(rng: random.Random) -> Schema:
    items = [_scalar(rng) for _ in range(rng.randint(1, 4))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _array_of_objects(rng: random.Random) -> Schema:
    return {"type": "array", "items": _flat(rng), "minItems": 1, "maxItems": 2}


def _unicode(rng: random.Random) -> Schema:
    return _closed({name: _scalar(rng) for name in rng.sample(_UNICODE, 3)})


def _map(rng: random.Random) -> Schema:
    # The compiler lets a key come twice, so no bound on the number of keys is asked for.
    return {"type": "object", "additionalProperties": _scalar(rng)}


def _pattern_properties(rng: random.Random) -> Schema:
    return {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 9}},
        "patternProperties": {"^x_[a-z]{1,4}$": _scalar(rng)},
        "required": ["id"],
        "additionalProperties": False,
    }


def _format(rng: random.Random) -> Schema:
    formats = rng.sample(["uuid", "ipv4", "email", "time", "date-time", "ipv6"], 2)
    return _closed({name: {"type": "string", "format": name} for name in formats})


def _all_of(rng: random.Random) -> Schema:
    low = rng.randint(0, 50)
    number = {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 20}]}
    return {
        "allOf": [
            {"type": "object", "properties": {"a": number}, "required": ["a"]},
            {"properties": {"b": _scalar(rng)}, "required": ["b"]},
        ],
        "type": "object",
        "properties": {"a": True, "b": True},
        "additionalProperties": False,
    }


def _annotated(rng: random.Random) -> Schema:
    schema = _flat(rng)
    for name, part in schema["properties"].items():
        part.update(title=name.title(), description=f"The {name}.", examples=[1])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Thing", **schema}


_FAMILIES: dict[str, Callable[[random.Random], Schema]] = {
    "flat": _flat,
    "nested": _nested,
    "optional": _optional,
    "enum": _enum,
    "pattern": _pattern,
    "reference": _reference,
    "recursive": _recursive,
    "any_of": _any_of,
    "one_of": _one_of,
    "types": _types,
    "bounds": _bounds,
    "array": _array,
    "tuple": _tuple,
    "array_of_objects": _array_of_objects,
    "unicode": _unicode,
    "map": _map,
    "pattern_properties": _pattern_properties,
    "format": _format,
    "all_of": _all_of,
    "annotated": _annotated,
}
