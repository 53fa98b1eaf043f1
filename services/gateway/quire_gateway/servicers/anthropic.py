"""quire.anthropic.v1.Anthropic: which RPC is which endpoint."""

from __future__ import annotations

import grpc

from quire.anthropic.v1 import anthropic_service_pb2
from quire_gateway.anthropic.endpoints import AnthropicEndpoints
from quire_gateway.servicers.dialect import add_handlers, body_handler

SERVICE_NAME: str = anthropic_service_pb2.DESCRIPTOR.services_by_name["Anthropic"].full_name


def add_anthropic(server: grpc.aio.Server, endpoints: AnthropicEndpoints) -> None:
    """Register the service."""
    handlers = {
        "CreateMessage": body_handler(endpoints.messages),
        "CountTokens": body_handler(endpoints.count_tokens),
    }
    add_handlers(server, SERVICE_NAME, handlers)
