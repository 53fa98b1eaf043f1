"""The one table between our exceptions and gRPC statuses, both ways.

One job: exception -> google.rpc.Status with details on a server, and grpc error -> the same exception on a client. It
knows no service. The cause travels as google.rpc.ErrorInfo (reason = the table's word, domain = DOMAIN, metadata = the
exception's fields); BadRequest and RetryInfo are added where they say something, for clients that are not ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from quire_servicekit import errors

DOMAIN = "quire"
DETAILS_KEY = "grpc-status-details-bin"

StatusCode = grpc.StatusCode


class Rule(NamedTuple):
    """How one exception class travels."""

    error: type[errors.QuireError]
    code: grpc.StatusCode
    reason: str


#: Every exception class, once. A subclass needs its own row.
TABLE: tuple[Rule, ...] = (
    Rule(errors.QuireError, StatusCode.INTERNAL, "ERROR"),
    Rule(errors.InternalError, StatusCode.INTERNAL, "INTERNAL"),
    Rule(errors.InvalidRequest, StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    Rule(errors.Unsupported, StatusCode.INVALID_ARGUMENT, "UNSUPPORTED_PARAMETER"),
    Rule(errors.UnknownModel, StatusCode.NOT_FOUND, "UNKNOWN_MODEL"),
    Rule(errors.UnknownRequest, StatusCode.NOT_FOUND, "UNKNOWN_REQUEST"),
    Rule(errors.DuplicateRequest, StatusCode.ALREADY_EXISTS, "DUPLICATE_REQUEST"),
    Rule(errors.QueueFull, StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    Rule(errors.OutOfMemory, StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY"),
    Rule(errors.DeadlineExceeded, StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    Rule(errors.RequestAborted, StatusCode.CANCELLED, "REQUEST_ABORTED"),
    Rule(errors.Unavailable, StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    Rule(errors.WorkerLost, StatusCode.UNAVAILABLE, "WORKER_LOST"),
    Rule(errors.FailedPrecondition, StatusCode.FAILED_PRECONDITION, "FAILED_PRECONDITION"),
    Rule(errors.FingerprintMismatch, StatusCode.FAILED_PRECONDITION, "FINGERPRINT_MISMATCH"),
    Rule(errors.StaleEpoch, StatusCode.FAILED_PRECONDITION, "STALE_EPOCH"),
    Rule(errors.Unauthenticated, StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    Rule(errors.PermissionDenied, StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
)

_BY_ERROR = {rule.error: rule for rule in TABLE}
_BY_REASON = {rule.reason: rule for rule in TABLE}

#: What a status without our details means, for instance one that gRPC itself or a proxy made.
_BY_CODE: dict[grpc.StatusCode, type[errors.QuireError]] = {
    StatusCode.UNAVAILABLE: errors.Unavailable,
    StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    StatusCode.CANCELLED: errors.RequestAborted,
    StatusCode.FAILED_PRECONDITION: errors.FailedPrecondition,
    StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    StatusCode.RESOURCE_EXHAUSTED: errors.QueueFull,
}


def rule_for(error: errors.QuireError) -> Rule:
    """The row of the error's class, or of its nearest ancestor that has one."""
    return next(_BY_ERROR[cls] for cls in type(error).__mro__ if cls in _BY_ERROR)


def status_of(error: errors.QuireError) -> status_pb2.Status:
    """The google.rpc.Status of an error, details included."""
    rule = rule_for(error)
    metadata = {name: str(getattr(error, name)) for name in rule.error.fields}
    details: list[AnyMessage] = [
        _pack(error_details_pb2.ErrorInfo(reason=rule.reason, domain=DOMAIN, metadata=metadata))
    ]
    field = getattr(error, "field", None) or getattr(error, "parameter", None)
    if isinstance(field, str):
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=error.message)
        details.append(_pack(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_delay_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_delay_s * 1000))
        details.append(_pack(error_details_pb2.RetryInfo(retry_delay=delay)))
    return status_pb2.Status(code=rule.code.value[0], message=error.message, details=details)


def trailing_metadata_of(error: errors.QuireError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that carries the details; pass it to `context.abort` with the rule's code."""
    return ((DETAILS_KEY, status_of(error).SerializeToString()),)


def error_of(failure: grpc.aio.AioRpcError) -> errors.QuireError:
    """The exception behind a failed call : ours if our details are there, else by its code."""
    code, message = failure.code(), failure.details() or ""
    metadata: Iterable[Any] = failure.trailing_metadata() or ()
    for key, value in metadata:
        if key == DETAILS_KEY and (error := error_of_status(status_pb2.Status.FromString(value))) is not None:
            return error
    return error_of_code(code, message)


def error_of_code(code: grpc.StatusCode, message: str) -> errors.QuireError:
    """The exception for a bare status code; InternalError for one that says nothing better."""
    if code is StatusCode.INVALID_ARGUMENT:
        return errors.InvalidRequest("request", message=message)
    if code is StatusCode.UNIMPLEMENTED:
        return errors.Unsupported("method", message=message)
    if code is StatusCode.NOT_FOUND:
        return errors.UnknownRequest("", message=message)
    cls = _BY_CODE.get(code, errors.InternalError)
    return cls(message=message) if message else cls()


def error_of_status(status: status_pb2.Status) -> errors.QuireError | None:
    """The exception that `status_of` made this from; None when the cause is not one of ours."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if not detail.Unpack(info) or info.domain != DOMAIN or info.reason not in _BY_REASON:
            continue
        cls = _BY_REASON[info.reason].error
        try:
            values = {
                name: kind(info.metadata[name]) for name, kind in cls.fields.items() if name in info.metadata
            }
            return cls(**values, message=status.message)
        except (TypeError, ValueError):
            # Made by another version, whose fields differ: the code still says the kind.
            return None
    return None


def _pack(message: error_details_pb2.ErrorInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
