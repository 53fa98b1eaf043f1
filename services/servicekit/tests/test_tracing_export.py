"""A traced call sends spans that belong together to an OTLP endpoint."""

from __future__ import annotations

import asyncio
import concurrent.futures

import grpc
import pytest

from quire_servicekit import tracing
from quire_servicekit.channel import connect
from quire_servicekit.server import ServiceServer

from .conftest import SampleSettings

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
collector_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")


class Collector(collector_grpc.TraceServiceServicer):
    """Keeps the spans it is sent."""

    def __init__(self) -> None:
        self.spans: list = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return collector.ExportTraceServiceResponse()


async def test_client_and_server_spans_share_a_trace(handlers, monkeypatch):
    """The server's span is a child of the client's, and both arrive at the collector."""
    sink = Collector()
    collecting = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    collector_grpc.add_TraceServiceServicer_to_server(sink, collecting)
    endpoint = f"127.0.0.1:{collecting.add_insecure_port('127.0.0.1:0')}"
    collecting.start()
    monkeypatch.setattr(tracing, "_provider", None)

    async def echo(request, context):
        return request

    handlers.add("unary_unary", "Echo", echo)
    server = ServiceServer(SampleSettings(listen="127.0.0.1:0", otlp_endpoint=endpoint), names=[])
    server.grpc.add_generic_rpc_handlers((handlers,))
    async with server:
        channel = connect(server.address, otlp_endpoint=endpoint)
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"
        await channel.close()
    await asyncio.to_thread(tracing._provider.shutdown)
    collecting.stop(0).wait()
    assert {span.kind for span in sink.spans} == {2, 3}  # server, client
    assert len({span.trace_id for span in sink.spans}) == 1
