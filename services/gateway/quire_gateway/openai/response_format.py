"""`response_format` and `structured_outputs`: what an OpenAI body says about its output's form, as a constraint.

One job: read both, refuse what names no form or more than one, and say which of the body's fields became which of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import orjson
from pydantic import Field

from quire_gateway.openai.parameters import StrictModel
from quire_gateway.structured import (
    MAX_NESTING,
    Constraint,
    ConstraintKind,
    is_deeper,
    without_additional_properties,
)
from quire_servicekit.errors import InvalidRequest


class JsonSchemaFormat(StrictModel):
    """The schema of `json_schema`. `strict` may say what it likes: the output always matches."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool = False


class ResponseFormat(StrictModel):
    """The value of `response_format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None

    def constraint(self) -> Constraint | None:
        """What it asks for; None: anything."""
        parts = {"json_schema": ("json_schema",), "structural_tag": ("structures", "triggers", "format")}
        for kind, names in parts.items():
            for name in names:
                if self.type != kind and getattr(self, name) is not None:
                    field = f"response_format.{name}"
                    raise InvalidRequest(
                        field, message=f"{field} is only allowed when response_format.type is {kind}"
                    )
        if self.type == "json_object":
            return Constraint(kind=ConstraintKind.JSON_OBJECT)
        if self.type == "json_schema":
            if self.json_schema is None:
                raise InvalidRequest(
                    "response_format.json_schema",
                    message="Missing required parameter: response_format.json_schema",
                    code="missing_required_parameter",
                )
            schema = self.json_schema.json_schema
            return _json_constraint(ConstraintKind.JSON_SCHEMA, schema, "response_format.json_schema.schema")
        if self.type == "structural_tag":
            tag = {
                name: value for name in parts["structural_tag"] if (value := getattr(self, name)) is not None
            }
            return _json_constraint(ConstraintKind.STRUCTURAL_TAG, tag, "response_format")
        return None


class StructuredOutputs(StrictModel):
    """The value of `structured_outputs`: exactly one form, and options of the JSON ones."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def constraint(self) -> Constraint:
        """What it asks for. Raises InvalidRequest unless it is exactly one form."""
        kind = self._kind()
        options: dict[str, Any] = {
            "disable_any_whitespace": self.disable_any_whitespace,
            "whitespace_pattern": self.whitespace_pattern,
        }
        if self.disable_additional_properties and kind is not ConstraintKind.JSON_SCHEMA:
            name = "structured_outputs.disable_additional_properties"
            raise InvalidRequest(name, message=f"{name} is only allowed with structured_outputs.json")
        if kind is ConstraintKind.JSON_SCHEMA:
            schema = _document(self.json_, "structured_outputs.json")
            if self.disable_additional_properties:
                schema = without_additional_properties(schema)
            return _json_constraint(kind, schema, "structured_outputs.json", **options)
        if kind is ConstraintKind.STRUCTURAL_TAG:
            tag = _document(self.structural_tag, "structured_outputs.structural_tag")
            return _json_constraint(kind, tag, "structured_outputs.structural_tag", **options)
        text = {ConstraintKind.REGEX: self.regex, ConstraintKind.GRAMMAR: self.grammar}.get(kind)
        return Constraint(kind=kind, text=text or "", choices=tuple(self.choice or ()), **options)

    def _kind(self) -> ConstraintKind:
        kinds = {
            "json": (self.json_, ConstraintKind.JSON_SCHEMA),
            "json_object": (self.json_object or None, ConstraintKind.JSON_OBJECT),
            "regex": (self.regex, ConstraintKind.REGEX),
            "choice": (self.choice, ConstraintKind.CHOICE),
            "grammar": (self.grammar, ConstraintKind.GRAMMAR),
            "structural_tag": (self.structural_tag, ConstraintKind.STRUCTURAL_TAG),
        }
        given = [name for name, (value, _) in kinds.items() if value is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "structured_outputs", f"exactly one of {', '.join(kinds)}", ", ".join(given) or "none"
            )
        return kinds[given[0]][1]


def constraint_of(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None
) -> Constraint | None:
    """The constraint that the two fields name together. Raises InvalidRequest if both name one."""
    constraint = None if response_format is None else response_format.constraint()
    if structured_outputs is None:
        return constraint
    if constraint is not None:
        raise InvalidRequest(
            "structured_outputs", message="structured_outputs cannot be combined with response_format"
        )
    return structured_outputs.constraint()


def constraint_names(has_structured_outputs: bool) -> Mapping[str, str]:
    """What this dialect calls the fields of a constraint."""
    return _OUTPUT_NAMES if has_structured_outputs else _FORMAT_NAMES


_FORMAT_NAMES: Mapping[str, str] = {
    "constraint": "response_format",
    "constraint.json_schema": "response_format.json_schema.schema",
    "constraint.json_object": "response_format",
    "constraint.structural_tag": "response_format",
}
_OUTPUT_NAMES: Mapping[str, str] = {
    "constraint": "structured_outputs",
    "constraint.json_schema": "structured_outputs.json",
    **{
        f"constraint.{name}": f"structured_outputs.{name}"
        for name in (
            "json_object",
            "regex",
            "choice",
            "grammar",
            "structural_tag",
            "disable_any_whitespace",
            "whitespace_pattern",
        )
    },
}


def _document(value: dict[str, Any] | str | None, field: str) -> dict[str, Any]:
    if not isinstance(value, str):
        return value or {}
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(field, message=f"{field} is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(field, "a JSON object", value)
    return document


def _json_constraint(
    kind: ConstraintKind, document: dict[str, Any], field: str, **options: Any
) -> Constraint:
    """The document as text, keys in the order the client wrote them: properties are generated in that order."""
    if is_deeper(document, MAX_NESTING):
        raise InvalidRequest(field, f"nested at most {MAX_NESTING} levels deep", "a deeper one")
    return Constraint(kind=kind, text=orjson.dumps(document).decode(), **options)
