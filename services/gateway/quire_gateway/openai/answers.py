"""The first thing an endpoint yields, and the dialect's error bodies.

One job: HTTP status, content type, and the shape {"error": {...}} for every cause.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import orjson

from quire_gateway.http_answer import EVENT_STREAM as EVENT_STREAM
from quire_gateway.http_answer import JSON as JSON
from quire_gateway.http_answer import Head as Head
from quire_servicekit import errors
from quire_servicekit.logging import get_logger

log = get_logger("openai")


class _Kind(NamedTuple):
    """How the dialect calls a cause."""

    status: int
    type: str
    code: str | None


#: Nearest class wins; a subclass without a row takes its base's.
_KINDS: dict[type[Exception], _Kind] = {
    errors.InvalidRequest: _Kind(400, "invalid_request_error", "invalid_value"),
    errors.Unsupported: _Kind(400, "invalid_request_error", "unsupported_parameter"),
    errors.UnknownModel: _Kind(404, "invalid_request_error", "model_not_found"),
    errors.UnknownRequest: _Kind(404, "invalid_request_error", "not_found"),
    errors.Unauthenticated: _Kind(401, "authentication_error", "invalid_api_key"),
    errors.PermissionDenied: _Kind(403, "permission_error", "permission_denied"),
    errors.QueueFull: _Kind(429, "rate_limit_error", "rate_limit_exceeded"),
    errors.OutOfMemory: _Kind(400, "invalid_request_error", "context_length_exceeded"),
    errors.Unavailable: _Kind(503, "server_error", "unavailable"),
    errors.DeadlineExceeded: _Kind(504, "server_error", "deadline_exceeded"),
    errors.RequestAborted: _Kind(499, "server_error", "request_aborted"),
}
_INTERNAL = _Kind(500, "server_error", "internal_error")


def kind_of(error: Exception) -> _Kind:
    """Status, type and code of a cause; what is unknown is an internal error."""
    return next((_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS), _INTERNAL)


def error_head(error: Exception) -> Head:
    """The head of an answer that is an error."""
    delay_s = getattr(error, "retry_delay_s", None)
    # A whole number of seconds, and never 0: "at once" is what the client has just tried.
    return Head(kind_of(error).status, JSON, max(1, math.ceil(delay_s)) if delay_s is not None else None)


def error_body(error: Exception) -> bytes:
    """The body {"error": {...}}; the text of an unknown cause is for the log, not for the client."""
    kind = kind_of(error)
    is_known = isinstance(error, errors.QuireError) and not isinstance(error, errors.InternalError)
    parameter = getattr(error, "field", None) or getattr(error, "parameter", None)
    if isinstance(error, errors.UnknownModel):
        parameter = "model"
    code = error.code if isinstance(error, errors.InvalidRequest) else kind.code
    message = str(error) if is_known else "The server had an error while processing your request."
    return orjson.dumps({"error": {"message": message, "type": kind.type, "param": parameter, "code": code}})


def error_event(error: Exception) -> bytes:
    """The error as a server-sent event, for streams whose head has gone out."""
    return b"data: " + error_body(error) + b"\n\n"


def error_pieces(error: Exception, has_head: bool = False) -> list[Head | bytes]:
    """The rest of an answer that failed. What is no error of ours is a bug, and logged; call it where it is handled."""
    if not isinstance(error, errors.QuireError):
        log.exception("request failed", reason=type(error).__name__)
    return [error_event(error)] if has_head else [error_head(error), error_body(error)]
