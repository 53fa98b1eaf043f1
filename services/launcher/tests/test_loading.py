"""The launcher against a small worker over gRPC: progress and readiness, without the rest of the suite."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from quire.worker.v1 import lifecycle_pb2, worker_service_pb2_grpc
from quire_launcher.loading import follow_load, until_loaded
from quire_launcher.supervisor import CannotGetReady
from quire_servicekit.server import ServiceServer
from quire_servicekit.settings import ServiceSettings


class FakeWorker(worker_service_pb2_grpc.WorkerServicer):
    """Says that it loads, and fails or succeeds as told."""

    def __init__(self) -> None:
        self.failure = ""

    async def Describe(self, request, context):
        state = lifecycle_pb2.WORKER_STATE_FAILED if self.failure else lifecycle_pb2.WORKER_STATE_LOADING
        return lifecycle_pb2.DescribeResponse(state=state, failure=self.failure)

    async def LoadModel(self, request, context):
        for done in (0, 5, 10):
            yield lifecycle_pb2.LoadModelResponse(phase=lifecycle_pb2.LOAD_PHASE_WEIGHTS, done=done, total=10)
        if self.failure:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.failure)


@pytest.fixture
async def worker():
    """A served FakeWorker, with its server as `server`."""
    made = FakeWorker()
    made.server = ServiceServer(ServiceSettings(listen="127.0.0.1:0"), names=["quire.worker.v1.Worker"])
    worker_service_pb2_grpc.add_WorkerServicer_to_server(made, made.server.grpc)
    async with made.server:
        yield made


@pytest.mark.parametrize("failure", ["", "model: cannot run this"])
async def test_progress_is_reported_in_words(worker, failure):
    """Each report of the load reaches the terminal with its phase, and a failed load only ends the reports."""
    worker.failure = failure
    reports = []
    await follow_load(worker.server.address, lambda *report: reports.append(report))
    assert reports == [("loading weights", done, 10) for done in (0, 5, 10)]


async def test_ready_when_the_worker_serves(worker):
    """Waiting ends when the worker's health says that it serves."""
    waiting = asyncio.create_task(until_loaded(worker.server.address))
    await asyncio.sleep(0)
    assert not waiting.done()
    await worker.server.ready()
    await asyncio.wait_for(waiting, 20)


async def test_a_failed_load_ends_the_wait_with_its_reason(worker):
    """A worker that stays up to say why it failed is not waited for."""
    worker.failure = "model: the file is cut short"
    with pytest.raises(CannotGetReady, match="the file is cut short"):
        await asyncio.wait_for(until_loaded(worker.server.address), 20)
