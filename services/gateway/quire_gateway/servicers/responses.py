"""quire.openai.v1.Responses: which RPC is which endpoint."""

from __future__ import annotations

from typing import Any

import grpc

from quire.openai.v1 import responses_service_pb2 as contract
from quire_gateway.http_answer import Pieces
from quire_gateway.openai.response_endpoints import ResponseEndpoints
from quire_gateway.requests import CallInfo
from quire_gateway.servicers.dialect import add_handlers, body_handler, message_handler

SERVICE_NAME: str = contract.DESCRIPTOR.services_by_name["Responses"].full_name


def add_responses(server: grpc.aio.Server, endpoints: ResponseEndpoints) -> None:
    """Register the service."""

    def get(request: Any, call: CallInfo) -> Pieces:
        after = request.starting_after if request.HasField("starting_after") else None
        return endpoints.get(request.response_id, call, stream=request.stream, starting_after=after)

    def cancel(request: Any, call: CallInfo) -> Pieces:
        return endpoints.cancel(request.response_id, call)

    def delete(request: Any, call: CallInfo) -> Pieces:
        return endpoints.delete(request.response_id, call)

    def input_items(request: Any, call: CallInfo) -> Pieces:
        return endpoints.input_items(
            request.response_id,
            call,
            limit=request.limit if request.HasField("limit") else 20,
            order=request.order or "desc",
            after=request.after,
        )

    handlers = {
        "CreateResponse": body_handler(endpoints.create),
        "GetResponse": message_handler(contract.GetResponseRequest, get),
        "CancelResponse": message_handler(contract.CancelResponseRequest, cancel),
        "DeleteResponse": message_handler(contract.DeleteResponseRequest, delete),
        "ListInputItems": message_handler(contract.ListInputItemsRequest, input_items),
    }
    add_handlers(server, SERVICE_NAME, handlers)
