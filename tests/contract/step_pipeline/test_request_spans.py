"""Spans of requests reach an OTLP endpoint, below the client's."""

import asyncio
import concurrent.futures

import grpc
import pytest

from quire_servicekit import tracing

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
collector_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")

TRACE_ID, SPAN_ID = "ab" * 16, "cd" * 8


class Collector(collector_grpc.TraceServiceServicer):
    """Keeps the spans it is sent."""

    def __init__(self):
        self.spans = []

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return collector.ExportTraceServiceResponse()


async def test_each_request_is_a_span_below_its_traceparent(pipeline, monkeypatch):
    """A submitted traceparent becomes the parent of one span with the request's times and tokens."""
    sink = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    collector_grpc.add_TraceServiceServicer_to_server(sink, server)
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    monkeypatch.setattr(tracing, "_provider", None)
    await pipeline.start_worker()
    await pipeline.start_scheduler(otlp_endpoint=endpoint)
    gateway = await pipeline.gateway()
    await gateway.submit(1, range(40), max_tokens=8, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-01")
    await gateway.submit(2, range(40), max_tokens=3)
    await gateway.until_finished(1, 2)
    await asyncio.to_thread(tracing._provider.shutdown)
    server.stop(0).wait()
    spans = {}
    for span in sink.spans:
        if span.name == "scheduler.request":
            values = {pair.key: pair.value for pair in span.attributes}
            spans[values["quire.request_id"].string_value] = (span, values)
    assert set(spans) == {"r1", "r2"}
    span, values = spans["r1"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert values["gen_ai.usage.input_tokens"].int_value == 40
    assert values["gen_ai.usage.output_tokens"].int_value == 8
    phases = sum(values[f"quire.{name}"].double_value for name in ("queue_s", "prefill_s", "decode_s"))
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == pytest.approx(phases, abs=1e-3)
    assert spans["r2"][0].trace_id != span.trace_id
