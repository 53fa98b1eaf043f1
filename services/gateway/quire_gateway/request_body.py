"""Reading a JSON body into a request, and refusing by name what is not served.

One job: nothing a client sends is ignored in silence. A name is either served (a field of the request's model), or
harmless (it cannot change the output), or accepted with the one value that means "off", or refused: known names as not
supported, others as unknown. Which names are which is each dialect's table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from quire_servicekit.errors import InvalidRequest, Unsupported


@dataclass(frozen=True, slots=True)
class Names:
    """The parameters that an endpoint knows without serving them."""

    #: Labels for the caller's own use: they change nothing.
    harmless: frozenset[str] = frozenset()
    #: Not served, but with these values nothing is asked for.
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Known to the dialect, and not served.
    unsupported: frozenset[str] = frozenset()


class StrictModel(BaseModel):
    """A JSON object of the dialect: types are not converted, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _leave_nulls_out(cls, value: object) -> object:
        """null means unset: clients send back whole messages that they got, with every key that was not used."""
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if item is not None}


M = TypeVar("M", bound=StrictModel)


def parse_body(body: bytes, model: type[M], names: Names) -> M:
    """The request in `body`. Raises InvalidRequest or Unsupported, naming the first parameter that is wrong."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            "body", message=f"the body is not valid JSON: {error}", code="invalid_json"
        ) from error
    if not isinstance(document, dict):
        raise InvalidRequest("body", message="the body must be a JSON object", code="invalid_json")
    try:
        return model.model_validate(_select(document, model.model_fields, names))
    except ValidationError as error:
        raise _explain(error) from error


def read_part(value: object, model: type[M], *where: str | int) -> M:
    """A part of a body whose model depends on its `type`; where: the path to it. Raises InvalidRequest."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _explain(error, where) from error


def _select(document: Mapping[str, Any], served: Collection[str], names: Names) -> dict[str, Any]:
    """The served parameters that are set; null means unset. Raises for those that are neither served nor neutral."""
    selected = {}
    for name, value in document.items():
        if name in served:
            if value is not None:
                selected[name] = value
        elif value is None or name in names.harmless or _is_off(name, value, names):
            continue
        elif name in names.neutral:
            wanted = _words(names.neutral[name])
            raise Unsupported(name, message=f"{name} is not supported with this value; it may be {wanted}")
        elif name in names.unsupported:
            raise Unsupported(name, message=f"{name} is not supported here")
        else:
            raise InvalidRequest(
                name, message=f"Unrecognized request argument: {name}", code="unknown_parameter"
            )
    return selected


def _is_off(name: str, value: object, names: Names) -> bool:
    return any(_is_same(value, neutral) for neutral in names.neutral.get(name, ()))


def _is_same(value: object, neutral: object) -> bool:
    # 1 == True in Python, and best_of: true is not best_of: 1.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _words(values: tuple[Any, ...]) -> str:
    return " or ".join(orjson.dumps(value).decode() for value in values)


def _explain(error: ValidationError, where: tuple[str | int, ...] = ()) -> InvalidRequest:
    """The first thing that is wrong, in the dialect's words."""
    # Of a union's branches the one that got furthest is the one that was meant.
    detail = max(error.errors(include_url=False, include_context=False), key=lambda found: len(found["loc"]))
    location = (*where, *detail["loc"])
    name = _name_of(location)
    if detail["type"] == "extra_forbidden":
        # The last part is the client's own word, whatever it looks like.
        name = f"{_name_of(location[:-1])}.{location[-1]}"
        return InvalidRequest(
            name, message=f"Unrecognized request argument: {name}", code="unknown_parameter"
        )
    if detail["type"] == "missing":
        return InvalidRequest(
            name, message=f"Missing required parameter: {name}", code="missing_required_parameter"
        )
    if detail["type"] == "too_short" and not detail["input"]:
        message = f"{name} must not be empty"
        return InvalidRequest(
            name, "at least one entry", detail["input"], message=message, code="invalid_type"
        )
    problem = detail["msg"].removeprefix("Value error, ")
    return InvalidRequest(name, problem, detail["input"], message=f"{name}: {problem}", code="invalid_type")


def _name_of(location: tuple[int | str, ...]) -> str:
    """messages[0].content for ("messages", 0, "content"); pydantic's names of union branches are left out."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not name:
            name = part
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "list", "dict"):
            name += f".{part}"
    return name or "body"
