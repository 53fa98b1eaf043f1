"""What an output must match, where reasoning stands before it, and what of that can be checked without a compiler.

One job: say which constraints are well formed. Whether one compiles is the scheduler's to find out. Knows neither a
dialect's JSON nor protobuf.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quire_servicekit.errors import InvalidRequest

MAX_TEXT_CHARS = 1 << 18
MAX_CHOICES = 1024
MAX_WHITESPACE_PATTERN_CHARS = 256
MAX_SPAN_TOKENS = 64
#: A schema nested deeper than this is refused: nothing that follows a schema may run out of stack.
MAX_NESTING = 64


class ConstraintKind(StrEnum):
    """Kinds of a constraint; the values are the contract's field names."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


#: Kinds whose whitespace can be told.
JSON_KINDS = frozenset(
    {ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT, ConstraintKind.STRUCTURAL_TAG}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A language that the output must be a word of.

    text: the schema, regular expression, grammar or structural tag; empty for the other kinds. JSON kinds as JSON text.
    choices: the texts of CHOICE. None is "unset" for the whitespace options, which only JSON kinds have.
    """

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningSpan:
    """The part of the output in which the model reasons: a constraint holds only after it, `max_tokens` ends it.

    start_token_ids: empty, or starts_open: open from the first output token on.
    """

    end_token_ids: tuple[int, ...]
    start_token_ids: tuple[int, ...] = ()
    starts_open: bool = False
    max_tokens: int | None = None


def validate_constraint(constraint: Constraint, names: Mapping[str, str] | None = None) -> None:
    """Raise InvalidRequest, naming the field, unless it is well formed. names: what the dialect calls our fields."""
    called = names or {}
    field = f"constraint.{constraint.kind}"
    field = called.get(field, field)
    if constraint.kind is ConstraintKind.CHOICE:
        _validate_choices(constraint.choices, field)
    elif constraint.kind is not ConstraintKind.JSON_OBJECT:
        if not constraint.text:
            raise InvalidRequest(field, "not empty", "''")
        if len(constraint.text) > MAX_TEXT_CHARS:
            raise InvalidRequest(field, f"at most {MAX_TEXT_CHARS} characters", len(constraint.text))
        if constraint.kind in JSON_KINDS:
            parse_json(constraint.text, field)
    _validate_whitespace(constraint, called)


def _validate_choices(choices: tuple[str, ...], field: str) -> None:
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidRequest(field, f"1 to {MAX_CHOICES} texts", len(choices))
    if "" in choices:
        raise InvalidRequest(field, "texts that are not empty", "''")
    if len(set(choices)) != len(choices):
        twice = next(text for text in choices if choices.count(text) > 1)
        raise InvalidRequest(field, "texts that are all different", twice)
    if (size := sum(map(len, choices))) > MAX_TEXT_CHARS:
        raise InvalidRequest(field, f"at most {MAX_TEXT_CHARS} characters in all", size)


def _validate_whitespace(constraint: Constraint, called: Mapping[str, str]) -> None:
    pattern = constraint.whitespace_pattern
    if pattern is None and constraint.disable_any_whitespace is None:
        return
    name = f"constraint.{'whitespace_pattern' if pattern is not None else 'disable_any_whitespace'}"
    field = called.get(name, name)
    if constraint.kind not in JSON_KINDS:
        raise InvalidRequest(field, message=f"{field} is only allowed with JSON, not with {constraint.kind}")
    if pattern is None:
        return
    if constraint.disable_any_whitespace:
        raise InvalidRequest(field, message=f"{field} excludes disable_any_whitespace")
    if not 1 <= len(pattern) <= MAX_WHITESPACE_PATTERN_CHARS:
        raise InvalidRequest(field, f"1 to {MAX_WHITESPACE_PATTERN_CHARS} characters", len(pattern))


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """A refusal of a constraint by an engine, in the dialect's words; any other as it is."""
    field = names.get(error.field) if error.field.startswith("constraint") else None
    if field is None:
        return error
    message = error.message.replace(error.field, field)
    return InvalidRequest(field, error.limit, error.value, message=message, code=error.code)


def validate_reasoning(span: ReasoningSpan, vocab_size: int, called: str = "reasoning") -> None:
    """Raise InvalidRequest unless the span can be followed."""
    if not span.end_token_ids:
        raise InvalidRequest(f"{called}.end_token_ids", "at least one token", 0)
    for name in ("start_token_ids", "end_token_ids"):
        token_ids = getattr(span, name)
        if len(token_ids) > MAX_SPAN_TOKENS:
            raise InvalidRequest(f"{called}.{name}", f"at most {MAX_SPAN_TOKENS} tokens", len(token_ids))
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(f"{called}.{name}", f"token ids from 0 to {vocab_size - 1}", token_id)
    if span.max_tokens is not None and span.max_tokens < 0:
        raise InvalidRequest(f"{called}.max_tokens", "at least 0", span.max_tokens)


def parse_json(text: str, field: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises InvalidRequest naming `field`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(field, message=f"{field} must be JSON text: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(field, "a JSON object", text)
    return document


def is_deeper(document: Any, depth: int) -> bool:
    """Whether objects and lists are nested more than `depth` levels. Needs no stack."""
    level: list[Any] = [document]
    for _ in range(depth):
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def json_schema(schema: Mapping[str, Any], field: str = "json_schema", **options: Any) -> Constraint:
    """The constraint of a schema that is there as data; options: the whitespace options.

    field: where it stands. Raises InvalidRequest for one that is nested too deep.
    """
    if is_deeper(schema, MAX_NESTING):
        raise InvalidRequest(field, f"nested at most {MAX_NESTING} levels deep", "a deeper one")
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, text=json.dumps(schema, ensure_ascii=False), **options)


_SUBSCHEMAS = ("items", "additionalItems", "contains", "not", "if", "then", "else", "propertyNames")
_LISTS_OF_SUBSCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS_OF_SUBSCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def without_additional_properties(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in every object that has properties and does not say otherwise."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in _SUBSCHEMAS:
        if name in closed:
            closed[name] = without_additional_properties(closed[name])
    for name in _LISTS_OF_SUBSCHEMAS:
        if isinstance(closed.get(name), list):
            closed[name] = [without_additional_properties(item) for item in closed[name]]
    for name in _MAPS_OF_SUBSCHEMAS:
        if isinstance(closed.get(name), dict):
            closed[name] = {key: without_additional_properties(item) for key, item in closed[name].items()}
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
