"""quire.openai.v1.Files and Batches: which RPC is which endpoint."""

from __future__ import annotations

from typing import Any

import grpc
from google.api import httpbody_pb2

from quire.openai.v1 import batches_service_pb2 as contract
from quire_gateway.openai.batch_endpoints import BatchEndpoints
from quire_gateway.servicers.dialect import add_handlers, body_handler, message_handler

_SERVICES = contract.DESCRIPTOR.services_by_name
FILES_NAME: str = _SERVICES["Files"].full_name
BATCHES_NAME: str = _SERVICES["Batches"].full_name


def add_files(server: grpc.aio.Server, endpoints: BatchEndpoints) -> None:
    """Register the service of files."""

    def list_files(request: Any, call: Any) -> Any:
        return endpoints.list_files(
            call,
            purpose=request.purpose,
            limit=request.limit if request.HasField("limit") else 10_000,
            order=request.order or "desc",
            after=request.after,
        )

    handlers = {
        "CreateFile": message_handler(
            httpbody_pb2.HttpBody,
            lambda body, call: endpoints.create_file(body.data, body.content_type, call),
        ),
        "ListFiles": message_handler(contract.ListFilesRequest, list_files),
        "GetFile": message_handler(
            contract.GetFileRequest, lambda request, call: endpoints.get_file(request.file_id, call)
        ),
        "GetFileContent": message_handler(
            contract.GetFileContentRequest,
            lambda request, call: endpoints.file_content(request.file_id, call),
        ),
        "DeleteFile": message_handler(
            contract.DeleteFileRequest, lambda request, call: endpoints.delete_file(request.file_id, call)
        ),
    }
    add_handlers(server, FILES_NAME, handlers)


def add_batches(server: grpc.aio.Server, endpoints: BatchEndpoints) -> None:
    """Register the service of batch jobs."""

    def list_batches(request: Any, call: Any) -> Any:
        limit = request.limit if request.HasField("limit") else 20
        return endpoints.list_batches(call, limit=limit, after=request.after)

    handlers = {
        "CreateBatch": body_handler(endpoints.create_batch),
        "ListBatches": message_handler(contract.ListBatchesRequest, list_batches),
        "GetBatch": message_handler(
            contract.GetBatchRequest, lambda request, call: endpoints.get_batch(request.batch_id, call)
        ),
        "CancelBatch": message_handler(
            contract.CancelBatchRequest, lambda request, call: endpoints.cancel_batch(request.batch_id, call)
        ),
    }
    add_handlers(server, BATCHES_NAME, handlers)
