"""Traces of the edge: spans reach a collector and join the client's trace; through the real binary."""

import queue
from concurrent import futures

import grpc
import pytest

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
trace_service_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")


@pytest.fixture
def collector(free_ports):
    """A collector that keeps what it gets; its address and the queue."""
    received = queue.Queue()

    class Collector(trace_service_grpc.TraceServiceServicer):
        def Export(self, request, context):
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        received.put(span)
            return trace_service.ExportTraceServiceResponse()

    (port,) = free_ports(1)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    trace_service_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    yield f"127.0.0.1:{port}", received
    server.stop(None).wait()


def test_spans_join_the_clients_trace(running_edge, gateway, collector):
    """A request with a trace context gives a span of that trace, and the gateway is told to go on with it."""
    address, received = collector
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with running_edge(gateways=(gateway.address,), otlp_endpoint=address) as edge:
        parent = f"00-{trace_id}-b7ad6b7169203331-01"
        seen = edge.http.get("/v1/models", headers={"traceparent": parent}).json()["traceparent"]
        assert seen.split("-")[1] == trace_id
        assert seen != parent
        while True:
            span = received.get(timeout=15)
            if span.trace_id.hex() == trace_id:
                break
        assert span.parent_span_id.hex() == "b7ad6b7169203331"
