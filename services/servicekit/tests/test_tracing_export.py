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


@pytest.fixture
def sink(monkeypatch):
    """A collector that listens at `sink.endpoint`, and a process that has not traced yet."""
    sink = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    collector_grpc.add_TraceServiceServicer_to_server(sink, server)
    sink.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    monkeypatch.setattr(tracing, "_provider", None)
    yield sink
    server.stop(0).wait()


async def test_client_and_server_spans_share_a_trace(handlers, sink):
    """The server's span is a child of the client's, and both arrive at the collector."""

    async def echo(request, context):
        return request

    handlers.add("unary_unary", "Echo", echo)
    server = ServiceServer(SampleSettings(listen="127.0.0.1:0", otlp_endpoint=sink.endpoint), names=[])
    server.grpc.add_generic_rpc_handlers((handlers,))
    async with server:
        channel = connect(server.address, otlp_endpoint=sink.endpoint)
        assert await channel.unary_unary("/test.Service/Echo")(b"x") == b"x"
        await channel.close()
    await asyncio.to_thread(tracing._provider.shutdown)
    assert {span.kind for span in sink.spans} == {2, 3}  # server, client
    assert len({span.trace_id for span in sink.spans}) == 1


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
async def test_handlers_that_write_are_traced_too(handlers, sink, kind):
    """A handler that writes its responses serves them as without traces, and its span arrives."""

    async def twice(request, context):
        await context.write(b"one")
        await context.write(b"two")

    handlers.add(kind, "Twice", twice)
    server = ServiceServer(SampleSettings(listen="127.0.0.1:0", otlp_endpoint=sink.endpoint), names=[])
    server.grpc.add_generic_rpc_handlers((handlers,))
    async with server:
        channel = connect(server.address)
        request = b"x" if kind == "unary_stream" else iter([b"x"])
        call = getattr(channel, kind)("/test.Service/Twice")(request)
        assert [response async for response in call] == [b"one", b"two"]
        await channel.close()
    await asyncio.to_thread(tracing._provider.shutdown)
    assert [span.kind for span in sink.spans] == [2]


async def test_a_written_span_is_a_child_of_its_traceparent(sink):
    """Times, attributes and the parent of a span that a service writes itself arrive; no context begins a new trace."""
    writer = tracing.span_writer(sink.endpoint)
    context = "00-" + "ab" * 16 + "-" + "cd" * 8
    for traceparent in (f"{context}-01", "not a context", f"{context}-00"):
        writer.write(
            "work",
            traceparent=traceparent,
            start_unix_ns=1_000,
            end_unix_ns=3_000,
            attributes={"name": "x", "count": 3, "time_s": 0.5},
        )
    await asyncio.to_thread(tracing._provider.shutdown)
    child, root = sink.spans  # what a parent that is not sampled would have below it is not written
    assert (child.trace_id, child.parent_span_id) == (b"\xab" * 16, b"\xcd" * 8)
    assert (child.name, child.start_time_unix_nano, child.end_time_unix_nano) == ("work", 1_000, 3_000)
    values = {pair.key: pair.value for pair in child.attributes}
    assert (values["name"].string_value, values["count"].int_value, values["time_s"].double_value) == (
        "x",
        3,
        0.5,
    )
    assert root.parent_span_id == b""
    assert root.trace_id != child.trace_id


def test_without_an_endpoint_there_is_no_writer():
    """Nothing is imported or made for those who don't trace."""
    assert tracing.span_writer(None) is None
