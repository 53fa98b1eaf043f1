"""Envoy's own answers (no route, no key, too large, too many, no gateway) in the error shape of the path's dialect.

One job: the `local_reply_config`. Answers of the gateway are not touched by it.
"""

from __future__ import annotations

from typing import Any

# HTTP status: (type, code) of OpenAI's error object.
ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "bad_request"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("timeout_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    426: ("invalid_request_error", "upgrade_required"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("server_error", "internal_error"),
    502: ("server_error", "bad_gateway"),
    503: ("server_error", "unavailable"),
    504: ("timeout_error", "deadline_exceeded"),
}


# HTTP status: type of Anthropic's error object. 503 becomes Anthropic's own 529.
ANTHROPIC_ERRORS: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Paths whose clients speak Anthropic.
ANTHROPIC_PREFIX = "/v1/messages"
_OVERLOADED = 529


def local_reply_config() -> dict[str, Any]:
    """The mappers, first match wins. Statuses below 400 (the health answers) are left alone."""
    mappers = [_native_grpc()]
    mappers += [_anthropic(_status("EQ", status), kind, status) for status, kind in ANTHROPIC_ERRORS.items()]
    mappers.append(_anthropic(_status("GE", 400), "api_error"))
    mappers += [_mapper(_status("EQ", status), kind, code) for status, (kind, code) in ERRORS.items()]
    mappers.append(_mapper(_status("GE", 400), "server_error", "error"))
    return {"mappers": mappers}


def _native_grpc() -> dict[str, Any]:
    """Keeps the plain message for gRPC clients: Envoy puts the body into `grpc-message`, JSON would be unreadable.

    A transcoded request has the gRPC content type too by now; the original path tells it apart.
    """
    is_grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}}
    not_transcoded = {"name": "x-envoy-original-path", "present_match": True, "invert_match": True}
    filters = [{"header_filter": {"header": is_grpc}}, {"header_filter": {"header": not_transcoded}}]
    return {
        "filter": {"and_filter": {"filters": filters}},
        "body_format_override": {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}},
    }


def _status(comparison: str, status: int) -> dict[str, Any]:
    # The filter demands a runtime key; nothing sets it.
    value = {"default_value": status, "runtime_key": "quire.unused"}
    return {"status_code_filter": {"comparison": {"op": comparison, "value": value}}}


def _mapper(condition: dict[str, Any], kind: str, code: str) -> dict[str, Any]:
    error = {"message": "%LOCAL_REPLY_BODY%", "type": kind, "param": None, "code": code}
    body = {"content_type": "application/json", "json_format": {"error": error}}
    return {"filter": condition, "body_format_override": body}


def _anthropic(condition: dict[str, Any], kind: str, status: int = 0) -> dict[str, Any]:
    """The same for Anthropic's paths, as the client wrote them or kept by the transcoder."""
    names = (":path", "x-envoy-original-path")
    paths = [
        {"header_filter": {"header": {"name": name, "string_match": {"prefix": ANTHROPIC_PREFIX}}}}
        for name in names
    ]
    error = {"type": kind, "message": "%LOCAL_REPLY_BODY%"}
    document = {"type": "error", "error": error, "request_id": "%REQ(x-request-id)%"}
    mapper: dict[str, Any] = {
        "filter": {"and_filter": {"filters": [condition, {"or_filter": {"filters": paths}}]}},
        "body_format_override": {"content_type": "application/json", "json_format": document},
    }
    if status == 503:
        mapper["status_code"] = _OVERLOADED
    return mapper
