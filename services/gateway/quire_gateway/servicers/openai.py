"""quire.openai.v1.OpenAI: HttpBody messages around the dialect's bytes.

One job: which endpoint serves which RPC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.api import httpbody_pb2

from quire.openai.v1 import openai_service_pb2
from quire_gateway.http_answer import Pieces
from quire_gateway.openai.endpoints import OpenAIEndpoints
from quire_gateway.requests import CallInfo
from quire_gateway.servicers.calls import call_info
from quire_gateway.servicers.http_bodies import http_body, send_head, write_pieces

SERVICE_NAME: str = openai_service_pb2.DESCRIPTOR.services_by_name["OpenAI"].full_name


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
        await send_head(context, head)
        return http_body(body, head.content_type)

    async def _answer(
        self, endpoint: Callable[[bytes, CallInfo], Pieces], request: httpbody_pb2.HttpBody, context: Any
    ) -> None:
        await write_pieces(endpoint(request.data, call_info(context)), context)

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
