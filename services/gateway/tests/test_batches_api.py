"""Files and batch jobs over a real gRPC server, with fakes behind: forms, answers, restarts and refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_fakes import FakeScheduler
from google.api import httpbody_pb2
from openai.types import Batch, FileObject

from quire.openai.v1 import batches_service_pb2 as contract
from quire.openai.v1 import batches_service_pb2_grpc
from quire_gateway.multipart import read_form
from quire_servicekit.errors import QueueFull

CHAT = "/v1/chat/completions"
BOUNDARY = "xyz"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def form(data: bytes, purpose: str | None = "batch", **more: str) -> bytes:
    """An upload as clients write it."""
    fields = {**({"purpose": purpose} if purpose else {}), **more}
    parts = [
        f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode()
        for name, value in fields.items()
    ]
    head = (
        b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    )
    pieces = [b"--" + BOUNDARY.encode() + b"\r\n" + part + b"\r\n" for part in (*parts, head + data)]
    return b"".join(pieces) + b"--" + BOUNDARY.encode() + b"--\r\n"


def line(number: int, text: str = "hi", url: str = CHAT, **body: Any) -> dict[str, Any]:
    """One request of a job."""
    body = {"messages": [{"role": "user", "content": text}], **body} if url == CHAT else body
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}


def lines(*documents: Any) -> bytes:
    """A file of them."""
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


class Client:
    """Calls the services as the edge does."""

    def __init__(self, suite: Any, tenant: str = "") -> None:
        self.suite, self._metadata = suite, [("x-client-id", tenant)] if tenant else []
        self._files = batches_service_pb2_grpc.FilesStub(suite.client.channel)
        self._batches = batches_service_pb2_grpc.BatchesStub(suite.client.channel)

    async def _send(self, call: Any) -> tuple[int, bytes]:
        async with asyncio.timeout(15):
            data = b"".join([message.data async for message in call])
        headers = {key: str(value) for key, value in await call.initial_metadata()}
        return int(headers.get("x-http-status", "200")), data

    async def ask(self, method: str, request: Any) -> tuple[int, Any]:
        """Status and JSON."""
        stub = self._files if "File" in method else self._batches
        status, data = await self._send(getattr(stub, method)(request, metadata=self._metadata))
        return status, json.loads(data)

    async def upload(self, data: bytes, **options: Any) -> Any:
        """A file that is kept."""
        body = httpbody_pb2.HttpBody(data=form(data, **options), content_type=FORM)
        status, answer = await self.ask("CreateFile", body)
        assert status == 200, answer
        FileObject.model_validate(answer)
        return answer

    async def content(self, file_id: str) -> bytes:
        """Its bytes."""
        call = self._files.GetFileContent(
            contract.GetFileContentRequest(file_id=file_id), metadata=self._metadata
        )
        status, data = await self._send(call)
        assert status == 200
        return data

    async def create(self, file_id: str, endpoint: str = CHAT, **options: Any) -> tuple[int, Any]:
        """Start a job."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **options}
        return await self.ask("CreateBatch", httpbody_pb2.HttpBody(data=json.dumps(body).encode()))

    async def wait(self, batch_id: str, *until: str) -> Any:
        """The job, once it has one of those statuses (any last one if none is named)."""
        until = until or ("completed", "failed", "expired", "cancelled")
        async with asyncio.timeout(20):
            while True:
                _, job = await self.ask("GetBatch", contract.GetBatchRequest(batch_id=batch_id))
                if job["status"] in until:
                    Batch.model_validate(job)
                    return job
                await asyncio.sleep(0.01)

    async def run(self, data: bytes, endpoint: str = CHAT) -> Any:
        """A job from upload to its end."""
        status, job = await self.create((await self.upload(data))["id"], endpoint)
        assert status == 200, job
        return await self.wait(job["id"])

    async def records(self, file_id: str) -> list[Any]:
        """The lines of an answer's file."""
        return [json.loads(data) for data in (await self.content(file_id)).splitlines()]


@pytest.fixture
async def client(make_suite: Any, tmp_path: Path) -> Client:
    """Of a gateway with a folder."""
    return Client(await make_suite(batch_folder=tmp_path / "b"))


async def test_files_are_kept_listed_read_and_removed(client: Client) -> None:
    """A file comes back byte for byte, for its tenant alone, until it is deleted."""
    data = bytes(range(256)) * 3000
    file = await client.upload(data)
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(data), "a.jsonl", "batch")
    assert await client.content(file["id"]) == data
    assert await client.ask("GetFile", contract.GetFileRequest(file_id=file["id"])) == (200, file)
    _, page = await client.ask("ListFiles", contract.ListFilesRequest())
    assert page["data"] == [file]
    other = Client(client.suite, "other")
    assert (await other.ask("GetFile", contract.GetFileRequest(file_id=file["id"])))[0] == 404
    assert (await other.ask("ListFiles", contract.ListFilesRequest()))[1]["data"] == []
    status, gone = await client.ask("DeleteFile", contract.DeleteFileRequest(file_id=file["id"]))
    assert (status, gone) == (200, {"id": file["id"], "object": "file", "deleted": True})
    assert (await client.ask("GetFile", contract.GetFileRequest(file_id=file["id"])))[0] == 404


@pytest.mark.parametrize(
    ("body", "content_type", "param"),
    [
        (form(b"x", "assistants"), FORM, "purpose"),
        (form(b"x", None), FORM, "purpose"),
        (form(b"x", **{"expires_after[anchor]": "created_at"}), FORM, "expires_after[anchor]"),
        (form(b"x")[:-8], FORM, "body"),
        (form(b"x"), "multipart/form-data; boundary=other", "body"),
        (b"{}", "application/json", "body"),
    ],
)
async def test_forms_that_are_wrong_are_refused_by_name(
    client: Client, body: bytes, content_type: str, param: str
) -> None:
    """What is no such form, or asks for what is not served, is 400 with its name."""
    request = httpbody_pb2.HttpBody(data=body, content_type=content_type)
    status, answer = await client.ask("CreateFile", request)
    assert (status, answer["error"]["param"]) == (400, param)


def test_a_form_may_hold_any_bytes() -> None:
    """Line ends and dashes in a file are its own; only a whole delimiter ends it."""
    data = b"a\r\n--xy\r\n\r\n--xyz"[:-1] + b"\x00\xff\r\n"
    fields = read_form(FORM, form(data))
    assert (fields["file"].data, fields["file"].filename, fields["purpose"].text) == (
        data,
        "a.jsonl",
        "batch",
    )


async def test_without_a_folder_everything_is_refused(suite: Any) -> None:
    """A gateway without the setting says which one it is."""
    client = Client(suite)
    for method, request in (
        ("CreateFile", httpbody_pb2.HttpBody(data=form(b"x"), content_type=FORM)),
        ("ListFiles", contract.ListFilesRequest()),
        ("ListBatches", contract.ListBatchesRequest()),
        ("CreateBatch", httpbody_pb2.HttpBody(data=b"{}")),
    ):
        status, answer = await client.ask(method, request)
        assert status == 400
        assert "batch_folder" in answer["error"]["message"]


async def test_a_job_answers_each_line(client: Client) -> None:
    """Every line has its answer in the order of the input; lines that fail are in a file of their own."""
    job = await client.run(
        lines(line(0), line(1, temperature=9), line(2, max_tokens=3), line(3, no_such=1)) + b"\n"
    )
    assert (job["status"], job["request_counts"]) == ("completed", {"total": 4, "completed": 2, "failed": 2})
    assert job["completed_at"] >= job["in_progress_at"] >= job["created_at"]
    output = await client.records(job["output_file_id"])
    assert [record["custom_id"] for record in output] == ["r0", "r2"]
    assert output[0]["response"]["status_code"] == 200
    assert output[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello, world"
    assert output[1]["response"]["body"]["usage"]["completion_tokens"] == 3
    errors = await client.records(job["error_file_id"])
    assert [record["custom_id"] for record in errors] == ["r1", "r3"]
    assert errors[0]["response"]["status_code"] == 400
    assert errors[0]["response"]["body"]["error"]["param"] == "temperature"


@pytest.mark.parametrize(
    ("endpoint", "body", "key"),
    [("/v1/completions", {"prompt": "a"}, "choices"), ("/v1/responses", {"input": "a"}, "output")],
)
async def test_jobs_of_other_endpoints(client: Client, endpoint: str, body: dict[str, Any], key: str) -> None:
    """Completions and responses run as well, at the priority of batches unless a line names its own."""
    job = await client.run(
        lines(line(0, url=endpoint, **body), line(1, url=endpoint, priority=-3, **body)), endpoint
    )
    assert job["request_counts"]["completed"] == 2
    assert (await client.records(job["output_file_id"]))[0]["response"]["body"][key]
    assert sorted(submit.priority for submit in client.suite.scheduler.submits) == [-3, 100]


@pytest.mark.parametrize(
    ("data", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"{\n", "invalid_json_line", 1),
        (lines(line(0), line(0)), "duplicate_custom_id", 2),
        (lines(line(0), {**line(1), "method": "GET"}), "invalid_method", 2),
        (lines(line(0, url="/v1/completions", prompt="a")), "mismatched_endpoint", 1),
        (lines({**line(0), "custom_id": 1}), "missing_required_parameter", 1),
        (lines({**line(0), "more": 1}), "unknown_parameter", 1),
        (lines(line(0, stream=True)), "unsupported_parameter", 1),
    ],
)
async def test_an_input_that_is_wrong_fails_the_job(
    client: Client, data: bytes, code: str, number: int | None
) -> None:
    """Nothing runs; the job says what is wrong, and in which line."""
    job = await client.run(data)
    assert job["status"] == "failed"
    (error,) = job["errors"]["data"]
    assert (error["code"], error["line"]) == (code, number)
    assert client.suite.scheduler.submits == []


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"output_expires_after": {"seconds": 1}}, "output_expires_after"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"no_such": 1}, "no_such"),
    ],
)
async def test_jobs_that_cannot_be_are_refused_by_name(
    client: Client, options: dict[str, Any], param: str
) -> None:
    """An endpoint, file or parameter that is not served is 400."""
    file = await client.upload(lines(line(0)))
    status, answer = await client.create(file["id"], **options)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_a_busy_engine_is_asked_again(make_suite: Any, tmp_path: Path) -> None:
    """A full queue is no answer: the line waits and runs when there is room."""
    scheduler = FakeScheduler(reject_with=QueueFull(0.1))
    client = Client(await make_suite([scheduler], batch_folder=tmp_path / "b"))
    _, job = await client.create((await client.upload(lines(line(0))))["id"])
    while not scheduler.submits:
        await asyncio.sleep(0.01)
    scheduler.reject_with = None
    job = await client.wait(job["id"])
    assert job["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


async def test_concurrency_is_bounded(make_suite: Any, tmp_path: Path) -> None:
    """No more lines run at once than the setting allows, over all jobs together."""
    scheduler = FakeScheduler(step_s=0.002)
    client = Client(await make_suite([scheduler], batch_folder=tmp_path / "b", batch_concurrency=3))
    jobs = [
        (await client.create((await client.upload(lines(*map(line, range(8)))))["id"]))[1] for _ in range(2)
    ]
    most = 0
    for job in jobs:
        while (await client.wait(job["id"], "validating", "in_progress", "finalizing", "completed"))[
            "status"
        ] != "completed":
            most = max(most, len(scheduler.running))
    assert 1 <= most <= 3
    assert len(scheduler.submits) == 16


async def test_cancel_keeps_what_is_done(make_suite: Any, tmp_path: Path) -> None:
    """A cancelled job leaves nothing running, is cancelled once and for all, and its answers stay."""
    scheduler = FakeScheduler(step_s=0.01)
    client = Client(await make_suite([scheduler], batch_folder=tmp_path / "b", batch_concurrency=1))
    _, job = await client.create((await client.upload(lines(*map(line, range(50)))))["id"])
    while (await client.wait(job["id"], "validating", "in_progress"))["request_counts"]["completed"] < 2:
        await asyncio.sleep(0.01)
    file = contract.DeleteFileRequest(file_id=job["input_file_id"])
    assert (await client.ask("DeleteFile", file))[0] == 400
    for _ in range(2):
        status, _ = await client.ask("CancelBatch", contract.CancelBatchRequest(batch_id=job["id"]))
        assert status == 200
    job = await client.wait(job["id"])
    assert job["status"] == "cancelled"
    assert len(await client.records(job["output_file_id"])) == job["request_counts"]["completed"] >= 2
    assert client.suite.gateway.admission.num_in_flight == 0
    assert (await client.ask("DeleteFile", file))[0] == 200


async def test_pages_of_jobs(client: Client) -> None:
    """Jobs are listed for their tenant, the newest first, a page at a time."""
    file = await client.upload(lines(line(0)))
    ids = {(await client.create(file["id"]))[1]["id"] for _ in range(3)}
    _, first = await client.ask("ListBatches", contract.ListBatchesRequest(limit=2))
    _, rest = await client.ask("ListBatches", contract.ListBatchesRequest(after=first["last_id"]))
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert {job["id"] for job in first["data"] + rest["data"]} == ids
    other = Client(client.suite, "other")
    assert (await other.ask("ListBatches", contract.ListBatchesRequest()))[1]["data"] == []


async def test_what_is_not_there_is_not_found(client: Client) -> None:
    """A job or file that is not there is 404 in OpenAI's shape."""
    for method, request in (
        ("GetBatch", contract.GetBatchRequest(batch_id="batch_none")),
        ("CancelBatch", contract.CancelBatchRequest(batch_id="batch_none")),
        ("DeleteFile", contract.DeleteFileRequest(file_id="../job")),
    ):
        status, answer = await client.ask(method, request)
        assert (status, answer["error"]["code"]) == (404, "not_found")
