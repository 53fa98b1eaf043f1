"""Errors: one table, both ways, with nothing lost on the way."""

from __future__ import annotations

import inspect

import grpc
import pytest
from google.rpc import error_details_pb2

from quire_servicekit import errors
from quire_servicekit.error_details import TABLE, error_of_code, error_of_status, rule_for, status_of

SAMPLES = [
    errors.QuireError("something"),
    errors.InternalError("internal error"),
    errors.InvalidRequest("temperature", "0 to 2", 3),
    errors.InvalidRequest("prompt", "4096 tokens", 5000, code="context_length_exceeded"),
    errors.Unsupported("best_of"),
    errors.UnknownModel("gpt-4"),
    errors.UnknownRequest("r1"),
    errors.DuplicateRequest("r1"),
    errors.QueueFull(2.5),
    errors.OutOfMemory(10, 5),
    errors.DeadlineExceeded(),
    errors.RequestAborted(),
    errors.Unavailable("tokenizer", 0.5),
    errors.WorkerLost(),
    errors.FailedPrecondition("blocks are not allocated"),
    errors.FingerprintMismatch("tokenizer", "a", "b"),
    errors.StaleEpoch(1, 2),
    errors.Unauthenticated(),
    errors.PermissionDenied(),
]


def details(error, kind):
    for packed in status_of(error).details:
        message = kind()
        if packed.Unpack(message):
            return message
    return None


def test_every_error_class_has_one_row_and_a_sample():
    """No exception class is forgotten by the table, and no reason means two things."""
    classes = {
        cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.QuireError)
    }
    assert [rule.error for rule in TABLE].count(errors.QueueFull) == 1
    assert {rule.error for rule in TABLE} == classes == {type(sample) for sample in SAMPLES}
    assert len({rule.reason for rule in TABLE}) == len(TABLE)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_round_trip(error):
    """What a server raises is what its client gets: class, sentence and fields."""
    back = error_of_status(status_of(error))
    assert type(back) is type(error)
    assert back.message == error.message
    for name in error.fields:
        assert getattr(back, name) == getattr(error, name)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("n", "1 to 128", 0), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.Unsupported("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.QueueFull(), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.UnknownRequest("r"), grpc.StatusCode.NOT_FOUND),
        (errors.WorkerLost(), grpc.StatusCode.UNAVAILABLE),
        (errors.DeadlineExceeded(), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.InternalError(), grpc.StatusCode.INTERNAL),
    ],
)
def test_codes(error, code):
    """The statuses that clients rely on."""
    assert rule_for(error).code is code
    assert status_of(error).code == code.value[0]


def test_a_subclass_without_a_row_travels_as_its_parent():
    """A service's own subclass needs no row to have the right status."""

    class TenantQueueFull(errors.QueueFull):
        pass

    assert rule_for(TenantQueueFull(1)).reason == "QUEUE_FULL"
    assert type(error_of_status(status_of(TenantQueueFull(1)))) is errors.QueueFull


def test_details_for_clients_that_are_not_ours():
    """A bad field and a retry delay are also there in google.rpc's own words."""
    violation = details(
        errors.InvalidRequest("top_p", "0 to 1", 2), error_details_pb2.BadRequest
    ).field_violations[0]
    assert (violation.field, violation.description) == ("top_p", "top_p must be 0 to 1, got 2")
    assert details(errors.QueueFull(2.5), error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 2500
    assert details(errors.UnknownModel("m"), error_details_pb2.RetryInfo) is None


def test_message_names_field_limit_and_value():
    """A client can correct its request from the sentence alone."""
    assert errors.InvalidRequest("n", "1 to 128", 0).message == "n must be 1 to 128, got 0"


def test_a_huge_value_does_not_come_back_in_the_message():
    """The message of a bad value is short however long the value is."""
    assert len(errors.InvalidRequest("stop", "4 strings", "x" * 100_000).message) < 200


def test_status_of_a_stranger_gives_no_error_of_ours():
    """Details of another domain, or of a version with other fields, are not mistaken for ours."""
    status = status_of(errors.QueueFull(1.0))
    info = error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="elsewhere")
    status.details[0].Pack(info)
    assert error_of_status(status) is None
    info = error_details_pb2.ErrorInfo(
        reason="QUEUE_FULL", domain="quire", metadata={"retry_delay_s": "soon"}
    )
    status.details[0].Pack(info)
    assert error_of_status(status) is None


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.UNIMPLEMENTED, errors.Unsupported),
        (grpc.StatusCode.NOT_FOUND, errors.UnknownRequest),
        (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    ],
)
def test_bare_codes_become_the_nearest_error(code, cls):
    """A status without details still becomes an exception, with its sentence."""
    error = error_of_code(code, "why")
    assert type(error) is cls
    assert error.message == "why"
