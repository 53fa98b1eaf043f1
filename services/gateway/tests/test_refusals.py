"""Calls refused before they could run leave a trace for the operator."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import structlog

from quire.inference.v1 import generate_pb2


@pytest.mark.parametrize(
    ("method", "route", "body", "field"),
    [
        ("ChatCompletions", "chat", b'{"messages": 7}', "messages"),
        ("Completions", "completions", b'{"prompt": "secret words", "temperature": "hot"}', "temperature"),
    ],
)
async def test_a_body_that_cannot_be_read_is_logged_and_counted(
    suite: Any, method: str, route: str, body: bytes, field: str
) -> None:
    """A refused body gives one line with route, cause and field, never its text, and one count by status."""
    with structlog.testing.capture_logs() as lines:
        answer = await suite.client.post(method, body)
    assert answer.status == 400
    refused = [line for line in lines if line["event"] == "request refused"]
    assert [(line["route"], line["status"], line["field"]) for line in refused] == [
        (route, "InvalidRequest", field)
    ]
    assert "secret words" not in str(refused)
    assert suite.gateway.metrics.requests.labels(route, "InvalidRequest")._value.get() == 1


async def test_a_typed_request_without_input_is_logged_and_counted(suite: Any) -> None:
    """The typed API leaves the same trace."""
    with structlog.testing.capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in suite.client.inference.Generate(generate_pb2.GenerateRequest()):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [line["route"] for line in lines if line["event"] == "request refused"] == ["generate"]
