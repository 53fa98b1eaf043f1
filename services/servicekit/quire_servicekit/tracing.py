"""OpenTelemetry traces of the RPCs, only where an OTLP endpoint is set.

One job: make the interceptors. OpenTelemetry takes most of a second to import, so that happens only for those who ask
for traces, and a service image may leave the packages out (the extra `quire-servicekit[tracing]` brings them).
"""

from __future__ import annotations

from typing import Any

import grpc

_provider: Any = None


def server_interceptors(endpoint: str | None) -> list[grpc.aio.ServerInterceptor]:
    """Interceptors that make a span of each RPC served; none without an endpoint."""
    if endpoint is None:
        return []
    from opentelemetry.instrumentation.grpc import aio_server_interceptor

    return [aio_server_interceptor(tracer_provider=configure_tracing("quire", endpoint))]


def client_interceptors(endpoint: str | None) -> list[grpc.aio.ClientInterceptor]:
    """Interceptors that make a span of each RPC called, and pass its context on; none without an endpoint."""
    if endpoint is None:
        return []
    from opentelemetry.instrumentation.grpc import aio_client_interceptors

    return list(aio_client_interceptors(tracer_provider=configure_tracing("quire", endpoint)))


def configure_tracing(service: str, endpoint: str) -> Any:
    """The process's tracer provider, made on the first call: spans of `service`, sent in batches to `endpoint`."""
    global _provider
    if _provider is None:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        _provider = TracerProvider(resource=Resource.create({"service.name": service}))
        _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, insecure=True)))
    return _provider
