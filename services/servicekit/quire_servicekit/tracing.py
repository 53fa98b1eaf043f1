"""OpenTelemetry traces, of RPCs and of what a service tells of itself, only where an OTLP endpoint is set.

One job: make the interceptors and the span writer. OpenTelemetry takes most of a second to import, so that happens
only for those who ask for traces, and a service image may leave the packages out (the extra
`quire-servicekit[tracing]` brings them).
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc

# The header and field that carry W3C trace context.
_TRACEPARENT = "traceparent"

_provider: Any = None


def server_interceptors(endpoint: str | None) -> list[grpc.aio.ServerInterceptor]:
    """Interceptors that make a span of each RPC served; none without an endpoint."""
    if endpoint is None:
        return []
    from opentelemetry.instrumentation.grpc import aio_server_interceptor

    return [
        aio_server_interceptor(tracer_provider=configure_tracing("quire", endpoint)),
        WritersAsIterators(),
    ]


class WritersAsIterators(grpc.aio.ServerInterceptor):
    """Makes handlers that write their responses look like those that yield them: OpenTelemetry's interceptor, which
    comes before, knows only the latter and would call the former without ever awaiting them."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """See grpc.aio.ServerInterceptor."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        kind = "stream_stream" if handler.request_streaming else "unary_stream"
        behavior = getattr(handler, kind)
        if not inspect.iscoroutinefunction(behavior):
            return handler

        async def iterate(request: Any, context: Any) -> AsyncIterator[Any]:
            await behavior(request, context)
            # Nothing is left to yield, but without a yield this would be no iterator.
            nothing: tuple[Any, ...] = ()
            for response in nothing:
                yield response

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            iterate,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def client_interceptors(endpoint: str | None) -> list[grpc.aio.ClientInterceptor]:
    """Interceptors that make a span of each RPC called, and pass its context on; none without an endpoint."""
    if endpoint is None:
        return []
    from opentelemetry.instrumentation.grpc import aio_client_interceptors

    return list(aio_client_interceptors(tracer_provider=configure_tracing("quire", endpoint)))


class SpanWriter:
    """Writes spans of things that are over; each belongs to the trace that its parent's context names."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("quire")
        self._propagator = TraceContextTextMapPropagator()

    def write(
        self,
        name: str,
        *,
        traceparent: str,
        start_unix_ns: int,
        end_unix_ns: int,
        attributes: Mapping[str, str | int | float],
    ) -> None:
        """Write one span. traceparent: W3C context of the parent; empty or malformed begins a trace of its own. A
        parent that is not sampled has no spans here either. Does not block: another thread sends spans in batches."""
        context = self._propagator.extract({_TRACEPARENT: traceparent})
        span = self._tracer.start_span(
            name, context=context, start_time=start_unix_ns, attributes=dict(attributes)
        )
        span.end(end_unix_ns)


def span_writer(endpoint: str | None) -> SpanWriter | None:
    """What writes a service's own spans; None without an endpoint."""
    return None if endpoint is None else SpanWriter(configure_tracing("quire", endpoint))


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
