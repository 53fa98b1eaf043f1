"""The server interceptor of every service: errors become statuses, ids become log fields.

One job: what has to happen around each RPC. It knows no method and no message. Handlers raise QuireError subclasses (or
let their bugs out); they never build a status themselves. A cancelled RPC is a client that has gone, not an error.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import structlog

from quire_servicekit import errors
from quire_servicekit.error_details import rule_for, trailing_metadata_of
from quire_servicekit.logging import get_logger

#: Metadata that carries the client's correlation id through all services.
REQUEST_ID_KEY = "x-request-id"
TRACE_KEY = "traceparent"

#: Methods that come every second from probes and say nothing about work.
_QUIET = ("/grpc.health.v1.", "/grpc.reflection.")

Handler = Callable[[Any, Any], Any]

log = get_logger("rpc")

#: As a handler's context gives it back: the code, or its number.
_UNIMPLEMENTED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED.value[0])


class ActiveRpcs:
    """How many RPCs run, so that a drain can wait for the last one. Health and reflection do not count."""

    def __init__(self) -> None:
        self.count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """One RPC more."""
        self.count += 1
        self._idle.clear()

    def leave(self) -> None:
        """One RPC less."""
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no RPC runs."""
        await self._idle.wait()


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server, of all four kinds."""

    def __init__(self, active: ActiveRpcs | None = None) -> None:
        self.active = ActiveRpcs() if active is None else active

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for each RPC; returns the wrapped handler, or None for an unknown method."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(_QUIET):
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        return self._wrap(handler, method, metadata)

    def _wrap(self, handler: Any, method: str, metadata: dict[str, Any]) -> Any:
        kind = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        behavior: Handler = getattr(handler, kind)
        wrapped: Handler

        if not handler.response_streaming:

            async def call(request: Any, context: Any) -> Any:
                async with self._rpc(method, metadata, context):
                    return await behavior(request, context)

            wrapped = call
        elif inspect.iscoroutinefunction(behavior):
            # The handler writes with context.write; it returns nothing to iterate.
            async def write(request: Any, context: Any) -> None:
                async with self._rpc(method, metadata, context):
                    await behavior(request, context)

            wrapped = write
        else:

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                async with (
                    self._rpc(method, metadata, context),
                    aclosing(behavior(request, context)) as responses,
                ):
                    async for response in responses:
                        yield response

            wrapped = stream

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            wrapped,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @asynccontextmanager
    async def _rpc(self, method: str, metadata: dict[str, Any], context: Any) -> AsyncIterator[None]:
        """Around one RPC: bind ids, count it, turn an exception into a status, log the end."""
        started = time.perf_counter()
        self.active.enter()
        # Never unbound: gRPC runs each RPC in a task of its own, and the binding ends with it.
        structlog.contextvars.bind_contextvars(**_ids(metadata))
        outcome = "OK"
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            outcome = "CANCELLED"
            raise
        except grpc.aio.AbortError:
            outcome = str(context.code())
            raise
        except errors.QuireError as error:
            outcome = rule_for(error).code.name
            if outcome == "INTERNAL":
                log.exception("rpc failed", method=method)
            await _abort(context, error)
        except Exception as failure:
            if isinstance(failure, NotImplementedError) and context.code() in _UNIMPLEMENTED:
                # A method that this service does not offer: the generated base class has set the code.
                outcome = "UNIMPLEMENTED"
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not offered by this service")
            outcome = "INTERNAL"
            log.exception("rpc failed", method=method)
            await _abort(context, errors.InternalError("internal error"))
        finally:
            self.active.leave()
            elapsed_ms = round((time.perf_counter() - started) * 1e3, 2)
            log.debug("rpc finished", method=method, code=outcome, elapsed_ms=elapsed_ms)


async def _abort(context: Any, error: errors.QuireError) -> None:
    """End the RPC with the error's status and details. Raises grpc.aio.AbortError, as gRPC wants."""
    await context.abort(rule_for(error).code, error.message, trailing_metadata_of(error))


def _ids(metadata: dict[str, Any]) -> dict[str, str]:
    """The log fields of one RPC, from its metadata."""
    ids = {}
    if request_id := metadata.get(REQUEST_ID_KEY):
        ids["request_id"] = str(request_id)
    parts = str(metadata.get(TRACE_KEY, "")).split("-")
    if len(parts) == 4:
        ids["trace_id"] = parts[1]
    return ids
