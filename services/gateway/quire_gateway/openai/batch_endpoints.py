"""The endpoints of files and batch jobs: bytes or fields of a request in, a head and the bytes of its answer out.

One job: the dialect's objects, and what is refused. Nothing here knows gRPC. Without a folder everything is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import orjson
from pydantic import Field

from quire_gateway.batches.job import Job
from quire_gateway.batches.runner import BatchRunner
from quire_gateway.file_store import FileInfo, new_file_id
from quire_gateway.http_answer import Head, Pieces
from quire_gateway.multipart import read_form
from quire_gateway.openai.answers import error_body, error_head
from quire_gateway.openai.pages import ordered, page
from quire_gateway.openai.response_request import check_metadata
from quire_gateway.request_body import Names, StrictModel, parse_body
from quire_gateway.requests import CallInfo
from quire_servicekit.errors import InvalidRequest, QuireError, Unsupported
from quire_servicekit.logging import get_logger

log = get_logger("batches")

MAX_FILES, MAX_JOBS = 10_000, 100
MAX_FILENAME_CHARS = 255
NAMES = Names(unsupported=frozenset({"output_expires_after"}))


class BatchRequest(StrictModel):
    """A job to start."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] = Field(default_factory=dict)


class BatchEndpoints:
    """Serves files and batches on a BatchRunner; None: this gateway has no folder for them."""

    def __init__(self, runner: BatchRunner | None, *, clock: Callable[[], float] = time.time) -> None:
        self._given, self._clock = runner, clock

    @property
    def _runner(self) -> BatchRunner:
        if self._given is None:
            raise Unsupported(
                "batch_folder", message="files and batches are not supported: this server has no batch_folder"
            )
        return self._given

    # ---- Files -------------------------------------------------------------------------------------------------

    def create_file(self, body: bytes, content_type: str, call: CallInfo) -> Pieces:
        """POST /v1/files."""

        async def make() -> bytes:
            store, form = self._runner.files, read_form(content_type, body)
            for name in form:
                if name not in ("file", "purpose"):
                    raise Unsupported(name, message=f"{name} is not supported here")
            for name in ("file", "purpose"):
                if name not in form:
                    raise InvalidRequest(
                        name, message=f"Missing required parameter: {name}", code="missing_required_parameter"
                    )
            if (purpose := form["purpose"].text) != "batch":
                raise Unsupported("purpose", message=f"purpose {purpose!r} is not supported; it may be batch")
            info = FileInfo(
                id=new_file_id(),
                tenant=call.tenant,
                filename=(form["file"].filename or "file")[-MAX_FILENAME_CHARS:],
                purpose=purpose,
                num_bytes=0,
                created_at=int(self._clock()),
            )
            return orjson.dumps(_file_object(await asyncio.to_thread(store.add, [form["file"].data], info)))

        return _answer(make)

    def list_files(self, call: CallInfo, *, purpose: str, limit: int, order: str, after: str) -> Pieces:
        """GET /v1/files."""

        async def make() -> bytes:
            files = [_file_object(info) for info in self._runner.files.list(call.tenant)]
            wanted = [file for file in files if not purpose or file["purpose"] == purpose]
            return page(ordered(wanted, order), limit, after, max_limit=MAX_FILES)

        return _answer(make)

    def get_file(self, file_id: str, call: CallInfo) -> Pieces:
        """GET /v1/files/{file_id}."""

        async def make() -> bytes:
            return orjson.dumps(_file_object(self._runner.files.get(file_id, call.tenant)))

        return _answer(make)

    async def file_content(self, file_id: str, call: CallInfo) -> Pieces:
        """GET /v1/files/{file_id}/content."""
        try:
            chunks = self._runner.files.chunks(self._runner.files.get(file_id, call.tenant).id)
            first = await asyncio.to_thread(next, chunks, b"")
        except QuireError as error:
            yield error_head(error)
            yield error_body(error)
            return
        yield Head(200, "application/octet-stream")
        while first:
            yield first
            first = await asyncio.to_thread(next, chunks, b"")

    def delete_file(self, file_id: str, call: CallInfo) -> Pieces:
        """DELETE /v1/files/{file_id}."""

        async def make() -> bytes:
            self._runner.files.get(file_id, call.tenant)
            if self._runner.uses(file_id):
                raise InvalidRequest("file_id", message=f"{file_id} is read by a batch that has not ended")
            self._runner.files.remove(file_id, call.tenant)
            return orjson.dumps({"id": file_id, "object": "file", "deleted": True})

        return _answer(make)

    # ---- Batches -----------------------------------------------------------------------------------------------

    def create_batch(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/batches."""

        async def make() -> bytes:
            runner, request = self._runner, parse_body(body, BatchRequest, NAMES)
            check_metadata(request.metadata)
            if request.endpoint not in runner.endpoints:
                allowed = ", ".join(sorted(runner.endpoints))
                raise Unsupported(
                    "endpoint", message=f"endpoint {request.endpoint!r} is not supported; it may be {allowed}"
                )
            try:
                info = runner.files.get(request.input_file_id, call.tenant)
            except QuireError as error:
                raise InvalidRequest("input_file_id", message=str(error)) from error
            if info.purpose != "batch":
                raise InvalidRequest("input_file_id", "a file whose purpose is batch", info.purpose)
            job = runner.create(call.tenant, request.endpoint, info.id, request.metadata)
            return orjson.dumps(_batch_object(job))

        return _answer(make)

    def list_batches(self, call: CallInfo, *, limit: int, after: str) -> Pieces:
        """GET /v1/batches."""

        async def make() -> bytes:
            jobs = [_batch_object(job) for job in self._runner.list(call.tenant)]
            return page(jobs, limit, after, max_limit=MAX_JOBS)

        return _answer(make)

    def get_batch(self, batch_id: str, call: CallInfo) -> Pieces:
        """GET /v1/batches/{batch_id}."""

        async def make() -> bytes:
            return orjson.dumps(_batch_object(self._runner.get(batch_id, call.tenant)))

        return _answer(make)

    def cancel_batch(self, batch_id: str, call: CallInfo) -> Pieces:
        """POST /v1/batches/{batch_id}/cancel."""

        async def make() -> bytes:
            return orjson.dumps(_batch_object(self._runner.cancel(batch_id, call.tenant)))

        return _answer(make)


async def _answer(make: Callable[[], Any]) -> AsyncIterator[Head | bytes]:
    """The JSON that `make` gives, or its error in the dialect's shape."""
    try:
        body: bytes = await make()
        head = Head()
    except Exception as error:
        if not isinstance(error, QuireError):
            log.exception("request failed", reason=type(error).__name__)
        head, body = error_head(error), error_body(error)
    yield head
    yield body


def _file_object(info: FileInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "object": "file",
        "bytes": info.num_bytes,
        "created_at": info.created_at,
        "expires_at": None,
        "filename": info.filename,
        "purpose": info.purpose,
        "status": "processed",
        "status_details": None,
    }


def _batch_object(job: Job) -> dict[str, Any]:
    times = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.endpoint,
        "errors": {"object": "list", "data": job.errors} if job.errors else None,
        "input_file_id": job.input_file_id,
        "completion_window": "24h",
        "status": str(job.status),
        "output_file_id": job.output_file_id if job.has_output else None,
        "error_file_id": job.error_file_id if job.has_errors else None,
        "created_at": job.created_at,
        "expires_at": job.expires_at,
        **{f"{name}_at": job.reached_at.get(name) for name in times},
        "request_counts": {
            "total": job.num_lines,
            "completed": job.num_completed,
            "failed": job.num_failed,
        },
        "metadata": job.metadata or None,
    }
