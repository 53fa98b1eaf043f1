"""Constraints and reasoning spans between the contract's messages and domain data.

One job: translate. No decision is taken here, but that a message must name a kind.
"""

from __future__ import annotations

from quire.sampling.v1 import sampling_pb2
from quire_gateway.structured import Constraint, ConstraintKind, ReasoningSpan
from quire_servicekit.errors import InvalidRequest


def constraint_of(message: sampling_pb2.Constraint) -> Constraint:
    """Constraint as domain data. Raises InvalidRequest if no kind is set, or `json_object` is false."""
    name = message.WhichOneof("kind")
    if name is None:
        kinds = ", ".join(ConstraintKind)
        raise InvalidRequest("constraint", message=f"constraint needs exactly one of {kinds}")
    kind = ConstraintKind(name)
    if kind is ConstraintKind.JSON_OBJECT and not message.json_object:
        raise InvalidRequest("constraint.json_object", "true", False)
    has_text = kind not in (ConstraintKind.JSON_OBJECT, ConstraintKind.CHOICE)
    return Constraint(
        kind=kind,
        text=getattr(message, name) if has_text else "",
        choices=tuple(message.choice.texts),
        disable_any_whitespace=message.disable_any_whitespace
        if message.HasField("disable_any_whitespace")
        else None,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
    )


def constraint_message(constraint: Constraint) -> sampling_pb2.Constraint:
    """Domain data as Constraint."""
    message = sampling_pb2.Constraint(
        disable_any_whitespace=constraint.disable_any_whitespace,
        whitespace_pattern=constraint.whitespace_pattern,
    )
    if constraint.kind is ConstraintKind.CHOICE:
        message.choice.texts.extend(constraint.choices)
    elif constraint.kind is ConstraintKind.JSON_OBJECT:
        message.json_object = True
    else:
        setattr(message, constraint.kind.value, constraint.text)
    return message


def reasoning_of(message: sampling_pb2.ReasoningSpan) -> ReasoningSpan:
    """ReasoningSpan as domain data."""
    return ReasoningSpan(
        end_token_ids=tuple(message.end_token_ids),
        start_token_ids=tuple(message.start_token_ids),
        starts_open=message.starts_open,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
    )


def reasoning_message(span: ReasoningSpan) -> sampling_pb2.ReasoningSpan:
    """Domain data as ReasoningSpan."""
    return sampling_pb2.ReasoningSpan(
        start_token_ids=span.start_token_ids,
        end_token_ids=span.end_token_ids,
        starts_open=span.starts_open,
        max_tokens=span.max_tokens,
    )
