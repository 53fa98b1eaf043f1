"""A real server on a free port, with handlers that tests give as functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import grpc
import pytest
import structlog

from quire_servicekit.channel import connect
from quire_servicekit.server import ServiceServer
from quire_servicekit.settings import ServiceSettings

KINDS = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


class SampleSettings(ServiceSettings):
    """A service for tests."""

    service: ClassVar[str] = "sample"


class Handlers(grpc.GenericRpcHandler):
    """Serves /test.Service/<name> with raw bytes, by functions added under the kind of RPC they are."""

    def __init__(self) -> None:
        self.handlers: dict[str, object] = {}

    def add(self, kind: str, name: str, function: Callable[..., object]) -> None:
        self.handlers[f"/test.Service/{name}"] = KINDS[kind](function)

    def service(self, details):
        return self.handlers.get(details.method)


@pytest.fixture
def handlers() -> Handlers:
    """The functions that `server` serves."""
    return Handlers()


@pytest.fixture
async def server(handlers: Handlers) -> AsyncIterator[ServiceServer]:
    """A started server with the service test.Service."""
    settings = SampleSettings(listen="127.0.0.1:0", drain_timeout_s=5)
    started = ServiceServer(settings, names=["test.Service"])
    started.grpc.add_generic_rpc_handlers((handlers,))
    async with started:
        yield started


@pytest.fixture
async def channel(server: ServiceServer) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to `server`."""
    channel = connect(server.address)
    yield channel
    await channel.close()


@pytest.fixture(autouse=True)
def quiet_logs():
    """Each test begins with no bound log fields, and captures structlog's events."""
    structlog.contextvars.clear_contextvars()
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as events:
        yield events
