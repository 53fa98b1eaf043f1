"""Services whose bodies are google.api.HttpBody in and out.

One job: register endpoints as handlers, for any dialect. Which RPC is which endpoint is each servicer's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.api import httpbody_pb2

from quire_gateway.http_answer import Pieces
from quire_gateway.requests import CallInfo
from quire_gateway.servicers.calls import call_info
from quire_gateway.servicers.http_bodies import write_pieces

#: What grpc.aio registers; its type has two parameters in the stubs and none at run time.
Handler = Any
#: An endpoint that takes a body.
BodyEndpoint = Callable[[bytes, CallInfo], Pieces]


def body_handler(endpoint: BodyEndpoint) -> Handler:
    """The handler of an RPC that takes an HttpBody."""

    async def handle(request: Any, context: Any) -> None:
        await write_pieces(endpoint(request.data, call_info(context)), context)

    return grpc.unary_stream_rpc_method_handler(handle, httpbody_pb2.HttpBody.FromString)


def message_handler(message: Any, endpoint: Callable[[Any, CallInfo], Pieces]) -> Handler:
    """The handler of an RPC that takes a `message` of its own; the endpoint gets it as it is."""

    async def handle(request: Any, context: Any) -> None:
        await write_pieces(endpoint(request, call_info(context)), context)

    return grpc.unary_stream_rpc_method_handler(handle, message.FromString)


def add_handlers(server: grpc.aio.Server, service: str, handlers: Mapping[str, Handler]) -> None:
    """Register a service of that full name."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(handlers)),))
