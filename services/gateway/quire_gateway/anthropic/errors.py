"""The dialect's error bodies: {"type": "error", "error": {"type", "message"}} for every cause.

One job: how Anthropic calls a cause, and with which HTTP status.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import orjson

from quire_gateway.http_answer import JSON, Head
from quire_servicekit import errors


class _Kind(NamedTuple):
    status: int
    type: str


#: Nearest class wins; a subclass without a row takes its base's.
_KINDS: dict[type[Exception], _Kind] = {
    errors.InvalidRequest: _Kind(400, "invalid_request_error"),
    errors.Unsupported: _Kind(400, "invalid_request_error"),
    errors.OutOfMemory: _Kind(400, "invalid_request_error"),
    errors.UnknownModel: _Kind(404, "not_found_error"),
    errors.UnknownRequest: _Kind(404, "not_found_error"),
    errors.Unauthenticated: _Kind(401, "authentication_error"),
    errors.PermissionDenied: _Kind(403, "permission_error"),
    errors.QueueFull: _Kind(429, "rate_limit_error"),
    errors.Unavailable: _Kind(529, "overloaded_error"),
    errors.DeadlineExceeded: _Kind(504, "timeout_error"),
    errors.RequestAborted: _Kind(499, "api_error"),
}
_INTERNAL = _Kind(500, "api_error")


def error_head(error: Exception) -> Head:
    """The head of an answer that is an error."""
    delay_s = getattr(error, "retry_delay_s", None)
    return Head(_kind_of(error).status, JSON, max(1, math.ceil(delay_s)) if delay_s is not None else None)


def error_body(error: Exception, request_id: str = "") -> bytes:
    """The body; the text of an unknown cause is for the log, not for the client."""
    return orjson.dumps(_document(error, request_id))


def error_event(error: Exception, request_id: str = "") -> bytes:
    """The error as an event, for streams whose head has gone out."""
    return b"event: error\ndata: " + error_body(error, request_id) + b"\n\n"


def _kind_of(error: Exception) -> _Kind:
    return next((_KINDS[cls] for cls in type(error).__mro__ if cls in _KINDS), _INTERNAL)


def _document(error: Exception, request_id: str) -> dict[str, Any]:
    is_known = isinstance(error, errors.QuireError) and not isinstance(error, errors.InternalError)
    message = str(error) if is_known else "Internal server error"
    detail = {"type": _kind_of(error).type, "message": message}
    return {"type": "error", "error": detail, "request_id": request_id or None}
