"""quire.openai.v1.OpenAI: HttpBody messages around the dialect's bytes.

One job: heads become content types and metadata. Chunks are written as bytes that are serialised already: a message
object per chunk would cost a third of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.api import httpbody_pb2

from quire.openai.v1 import openai_service_pb2
from quire_gateway.openai.answers import Head
from quire_gateway.openai.endpoints import OpenAIEndpoints, Pieces
from quire_gateway.requests import CallInfo
from quire_gateway.servicers.calls import call_info

SERVICE_NAME: str = openai_service_pb2.DESCRIPTOR.services_by_name["OpenAI"].full_name

_CONTENT_TYPE_TAG, _DATA_TAG = b"\x0a", b"\x12"


def http_body(data: bytes, content_type: str = "") -> bytes:
    """A serialised google.api.HttpBody."""
    body = _DATA_TAG + _varint(len(data)) + data if data else b""
    if not content_type:
        return body
    encoded = content_type.encode()
    return _CONTENT_TYPE_TAG + _varint(len(encoded)) + encoded + body


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


class OpenAIServicer:
    """Serves OpenAIEndpoints over gRPC."""

    def __init__(self, endpoints: OpenAIEndpoints) -> None:
        self._endpoints = endpoints

    async def ChatCompletions(self, request: httpbody_pb2.HttpBody, context: Any) -> None:
        """See the contract."""
        await self._answer(self._endpoints.chat_completions, request, context)

    async def Completions(self, request: httpbody_pb2.HttpBody, context: Any) -> None:
        """See the contract."""
        await self._answer(self._endpoints.completions, request, context)

    async def ListModels(self, request: openai_service_pb2.ListModelsRequest, context: Any) -> bytes:
        """See the contract."""
        head, body = self._endpoints.list_models()
        return http_body(body, head.content_type)

    async def GetModel(self, request: openai_service_pb2.GetModelRequest, context: Any) -> bytes:
        """See the contract."""
        head, body = self._endpoints.get_model(request.model)
        await _send_head(context, head)
        return http_body(body, head.content_type)

    async def _answer(
        self, endpoint: Callable[[bytes, CallInfo], Pieces], request: httpbody_pb2.HttpBody, context: Any
    ) -> None:
        content_type = ""
        # Closed on every path, so that a client that goes away aborts its request at once.
        async with aclosing(endpoint(request.data, call_info(context))) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                if isinstance(piece, bytes):
                    await context.write(http_body(piece, content_type))
                    content_type = ""
                else:
                    await _send_head(context, piece)
                    content_type = piece.content_type

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        server.add_generic_rpc_handlers((self._handlers(),))

    def _handlers(self) -> grpc.GenericRpcHandler:
        # As the generated code does it, but with answers that are bytes already.
        body = httpbody_pb2.HttpBody.FromString
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "ChatCompletions": grpc.unary_stream_rpc_method_handler(self.ChatCompletions, body),
                "Completions": grpc.unary_stream_rpc_method_handler(self.Completions, body),
                "ListModels": grpc.unary_unary_rpc_method_handler(
                    self.ListModels, openai_service_pb2.ListModelsRequest.FromString
                ),
                "GetModel": grpc.unary_unary_rpc_method_handler(
                    self.GetModel, openai_service_pb2.GetModelRequest.FromString
                ),
            },
        )


async def _send_head(context: Any, head: Head) -> None:
    """The HTTP status as metadata, which the edge turns into the real one; 200 needs none."""
    if head.status == 200:
        return
    metadata = [("x-http-status", str(head.status))]
    if head.retry_after_s is not None:
        metadata.append(("retry-after", str(head.retry_after_s)))
    await context.send_initial_metadata(tuple(metadata))
