"""Constraints on the output: read from both APIs, checked, and refused in the client's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.sampling.v1 import sampling_pb2
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.parameters import parse
from quire_gateway.sampling import Sampling, validate
from quire_gateway.structured import (
    MAX_TEXT_CHARS,
    Constraint,
    ConstraintKind,
    ReasoningSpan,
    is_deeper,
    renamed,
    validate_constraint,
    validate_reasoning,
    without_additional_properties,
)
from quire_gateway.wire import sampling_message, sampling_of
from quire_servicekit.errors import InvalidRequest

_SCHEMA = {"type": "object", "properties": {"z": {"type": "null"}, "a": {"enum": [None, "é"]}}}


def _chat(**options: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **options}
    return parse(json.dumps(body).encode(), ChatRequest)


def _constraint(**options: Any) -> Constraint | None:
    return _chat(**options).to_generation().sampling.constraint


def _json_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


def test_response_format_names_a_constraint() -> None:
    """Each type has its constraint; text has none; a schema keeps its order, its nulls and its characters."""
    assert _constraint() is None
    assert _constraint(response_format={"type": "text"}) is None
    assert _constraint(response_format={"type": "json_object"}) == Constraint(kind=ConstraintKind.JSON_OBJECT)
    for strict in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "d"}):
        found = _constraint(response_format=_json_format(_SCHEMA, **strict))
        assert found is not None
        assert found.kind is ConstraintKind.JSON_SCHEMA
        assert found.text == '{"type":"object","properties":{"z":{"type":"null"},"a":{"enum":[null,"é"]}}}'
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<a>", "schema": {}, "end": ""}],
        "triggers": ["<a"],
    }
    found = _constraint(response_format=tag)
    assert found is not None
    assert json.loads(found.text) == {"structures": tag["structures"], "triggers": tag["triggers"]}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"json": {"type": "null"}}, Constraint(kind=ConstraintKind.JSON_SCHEMA, text='{"type":"null"}')),
        ({"json": '{"type": "null"}'}, Constraint(kind=ConstraintKind.JSON_SCHEMA, text='{"type":"null"}')),
        ({"json_object": True}, Constraint(kind=ConstraintKind.JSON_OBJECT)),
        ({"regex": "a+"}, Constraint(kind=ConstraintKind.REGEX, text="a+")),
        ({"choice": ["a", "b"]}, Constraint(kind=ConstraintKind.CHOICE, choices=("a", "b"))),
        ({"grammar": "root ::= x"}, Constraint(kind=ConstraintKind.GRAMMAR, text="root ::= x")),
        ({"structural_tag": "{}"}, Constraint(kind=ConstraintKind.STRUCTURAL_TAG, text="{}")),
        (
            {"json": {}, "disable_any_whitespace": True},
            Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{}", disable_any_whitespace=True),
        ),
        (
            {"json": {"properties": {"a": {}}}, "disable_additional_properties": True},
            Constraint(
                kind=ConstraintKind.JSON_SCHEMA,
                text='{"properties":{"a":{}},"additionalProperties":false}',
            ),
        ),
    ],
)
def test_structured_outputs_names_exactly_one_form(form: dict[str, Any], expected: Constraint) -> None:
    """Every form of the extension, in both endpoints."""
    assert _constraint(structured_outputs=form) == expected
    body = json.dumps({"prompt": "p", "structured_outputs": form}).encode()
    assert parse(body, CompletionRequest).to_generations()[0].sampling.constraint == expected


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", "a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "["}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"grammar": "a" * (MAX_TEXT_CHARS + 1)}}, "structured_outputs.grammar"),
        (
            {"structured_outputs": {"regex": "a", "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs.yaml"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "triggers": []}}, "response_format.triggers"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, "allowed_token_ids"),
    ],
)
def test_a_bad_form_is_refused_by_its_own_name(options: dict[str, Any], field: str) -> None:
    """What is wrong, or doubled, or contradicts the constraint, is named as the client wrote it."""
    with pytest.raises(InvalidRequest) as caught:
        request = _chat(**options)
        validate(request.to_generation().sampling, 100, request.names)
    assert caught.value.field == field


def test_deep_schemas_are_refused_before_anything_recurses() -> None:
    """A schema nested hundreds of levels deep is a 400, whoever would have to follow it."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"properties": {"a": deep}}
    with pytest.raises(InvalidRequest) as caught:
        _chat(response_format=_json_format(deep)).to_generation()
    assert caught.value.field == "response_format.json_schema.schema"
    assert is_deeper([[[]]], 2)
    assert not is_deeper([[[]]], 3)


def test_objects_are_closed_wherever_they_stand() -> None:
    """disable_additional_properties reaches nested, listed and referenced objects, and no stated rule is changed."""
    inner = {"type": "object", "properties": {"a": True}}
    closed = {**inner, "additionalProperties": False}
    schema = {
        "properties": {"x": inner, "y": {"items": inner}, "z": {"anyOf": [inner, {"type": "null"}]}},
        "$defs": {"d": inner, "open": {**inner, "additionalProperties": {"type": "null"}}},
        "additionalProperties": True,
    }
    assert without_additional_properties(schema) == {
        "properties": {"x": closed, "y": {"items": closed}, "z": {"anyOf": [closed, {"type": "null"}]}},
        "$defs": {"d": closed, "open": {**inner, "additionalProperties": {"type": "null"}}},
        "additionalProperties": True,
    }


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{}", whitespace_pattern=" ?"),
        Constraint(kind=ConstraintKind.JSON_OBJECT, disable_any_whitespace=False),
        Constraint(kind=ConstraintKind.CHOICE, choices=("a", "b")),
        Constraint(kind=ConstraintKind.STRUCTURAL_TAG, text="{}"),
        Constraint(kind=ConstraintKind.REGEX, text="a"),
    ],
)
def test_constraints_survive_the_wire(constraint: Constraint) -> None:
    """To the contract's message and back nothing is lost, presence included."""
    sampling = Sampling(constraint=constraint, reasoning=ReasoningSpan(end_token_ids=(1,), max_tokens=0))
    assert sampling_of(sampling_message(sampling)) == sampling


def test_a_message_must_name_a_kind() -> None:
    """A constraint without a kind, or a false json_object, is refused by name."""
    for message in (sampling_pb2.Constraint(), sampling_pb2.Constraint(json_object=False)):
        with pytest.raises(InvalidRequest) as caught:
            sampling_of(sampling_pb2.SamplingParams(constraint=message))
        assert caught.value.field.startswith("constraint")


@pytest.mark.parametrize(
    ("span", "field"),
    [
        (ReasoningSpan(end_token_ids=()), "reasoning.end_token_ids"),
        (ReasoningSpan(end_token_ids=(100,)), "reasoning.end_token_ids"),
        (ReasoningSpan(end_token_ids=(1,), start_token_ids=tuple(range(65))), "reasoning.start_token_ids"),
        (ReasoningSpan(end_token_ids=(1,), max_tokens=-1), "reasoning.max_tokens"),
    ],
)
def test_spans_that_cannot_be_followed_are_refused(span: ReasoningSpan, field: str) -> None:
    """A span needs closing tokens, of the vocabulary, and a budget that is none or a number."""
    with pytest.raises(InvalidRequest) as caught:
        validate_reasoning(span, 100)
    assert caught.value.field == field


def test_an_engines_refusal_gets_the_clients_name() -> None:
    """What the scheduler calls constraint.json_schema is what the body called it; other fields keep their names."""
    names = _chat(structured_outputs={"json": {}}).names
    error = InvalidRequest(
        "constraint.json_schema", "a", "b", message="constraint.json_schema does not compile"
    )
    found = renamed(error, names)
    assert (found.field, found.message) == (
        "structured_outputs.json",
        "structured_outputs.json does not compile",
    )
    other = InvalidRequest("prompt", "a", "b")
    assert renamed(other, names) is other


def test_a_typed_constraint_is_checked_under_its_own_name() -> None:
    """Without a dialect's names the contract's field names are used."""
    with pytest.raises(InvalidRequest) as caught:
        validate_constraint(Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{"))
    assert caught.value.field == "constraint.json_schema"
