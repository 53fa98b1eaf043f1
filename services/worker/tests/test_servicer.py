"""The worker's gRPC side over the simulated executor: lifecycle, fencing, order, refusals."""

import asyncio
import threading

import grpc
import pytest

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.worker.v1 import lifecycle_pb2, step_pb2, worker_service_pb2_grpc
from quire_servicekit import health
from quire_servicekit.channel import connect
from quire_worker.executor import LoadPhase, LoadProgress, ModelSource, PoolTooLarge
from quire_worker.serving import WORKER_SERVICE, WorkerService
from quire_worker.simulated.executor import SimulatedExecutor
from quire_worker.simulated.settings import SimulatedWorkerSettings

SIZES = lifecycle_pb2.AllocateBlocksRequest(
    block_size=16, max_num_seqs=4, max_tokens_per_step=64, num_blocks=32
)


class Worker:
    """A served worker and a stub for it."""

    def __init__(self, service, channel):
        self.service = service
        self.channel = channel
        self.stub = worker_service_pb2_grpc.WorkerStub(channel)

    async def describe(self):
        return await self.stub.Describe(lifecycle_pb2.DescribeRequest())

    async def load(self, **request):
        return [progress async for progress in self.stub.LoadModel(lifecycle_pb2.LoadModelRequest(**request))]

    async def allocate(self, request=SIZES):
        return (await self.stub.AllocateBlocks(request)).pool

    async def open(self, epoch):
        call = self.stub.Execute()
        await call.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=epoch, scheduler_id="test")))
        assert (await call.read()).opened.epoch == epoch
        return call


def step(step_id, slots, counts, new=(), **fields):
    """A step's message."""
    request = step_pb2.StepRequest(step_id=step_id, slots=slots, num_new_tokens=counts, **fields)
    for slot, tokens, block in new:
        request.new_sequences.add(
            slot=slot,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            block_ids=[block],
            sampling={"seed": 7},
        )
    return step_pb2.ExecuteRequest(step=request)


async def code_of(call):
    """The status a stream ends with, whatever it still brings before."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError:
        pass
    return await call.code()


class GatedExecutor(SimulatedExecutor):
    """Loads when it is told to."""

    def __init__(self, model):
        super().__init__(model)
        self.gate = threading.Event()
        self.num_loads = 0
        self.load_error = None
        self.allocate_error = None

    def load(self, source, report):
        self.num_loads += 1
        report(LoadProgress(LoadPhase.WEIGHTS, 1, 2))
        assert self.gate.wait(10)
        if self.load_error is not None:
            raise self.load_error
        return super().load(source, report)

    def allocate(self, request):
        if self.allocate_error is not None:
            raise self.allocate_error
        return super().allocate(request)


@pytest.fixture
def settings():
    return SimulatedWorkerSettings(listen="127.0.0.1:0", max_model_len=128)


@pytest.fixture
def executor(settings):
    executor = GatedExecutor(settings.simulated_model())
    yield executor
    executor.gate.set()


@pytest.fixture
async def worker(settings, executor):
    """A worker that begins to load at once and waits for the executor's gate."""
    service = WorkerService(settings, executor, ModelSource("model-a"))
    async with service, connect(service.server.address) as channel:
        yield Worker(service, channel)
        executor.gate.set()


@pytest.fixture
async def ready(worker, executor):
    """A worker with its pool."""
    executor.gate.set()
    await worker.load()
    await worker.allocate()
    return worker


async def test_answers_while_it_loads(worker, executor):
    """Describe says LOADING, health says not ready, and a load that joins sees progress, then the model."""
    described = await worker.describe()
    assert described.state == lifecycle_pb2.WORKER_STATE_LOADING
    assert not described.HasField("model")
    assert not await health.check(worker.channel, WORKER_SERVICE)
    assert await health.check(worker.channel)
    first, second = asyncio.create_task(worker.load()), asyncio.create_task(worker.load(path="model-a"))
    await asyncio.sleep(0.05)
    executor.gate.set()
    for reports in (await first, await second):
        phases = [report.phase for report in reports]
        assert phases == sorted(phases)
        assert phases[0] == lifecycle_pb2.LOAD_PHASE_WEIGHTS
        assert phases[-1] == lifecycle_pb2.LOAD_PHASE_READY
        assert reports[-1].model.id == "simulated"
    assert executor.num_loads == 1


async def test_ready_only_with_a_pool(worker, executor):
    """After the load the worker is LOADED, after AllocateBlocks READY and SERVING."""
    executor.gate.set()
    await worker.load()
    assert (await worker.describe()).state == lifecycle_pb2.WORKER_STATE_LOADED
    assert not await health.check(worker.channel, WORKER_SERVICE)
    pool = await worker.allocate()
    assert (pool.num_blocks, pool.block_size, pool.max_num_seqs, pool.max_model_len) == (32, 16, 4, 128)
    described = await worker.describe()
    assert described.state == lifecycle_pb2.WORKER_STATE_READY
    assert described.pool == pool
    async with asyncio.timeout(5):
        while not await health.check(worker.channel, WORKER_SERVICE):
            await asyncio.sleep(0.005)


async def test_cancelled_load_goes_on(worker, executor):
    """Cancelling LoadModel stops the reports, not the loading."""
    call = worker.stub.LoadModel(lifecycle_pb2.LoadModelRequest())
    await call.read()
    call.cancel()
    executor.gate.set()
    assert (await worker.load())[-1].phase == lifecycle_pb2.LOAD_PHASE_READY
    assert executor.num_loads == 1


async def test_another_model_is_refused(ready):
    """LoadModel for another path than the one loaded is FAILED_PRECONDITION."""
    with pytest.raises(grpc.aio.AioRpcError, match="model-a") as refused:
        await ready.load(path="model-b")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError("no file model-a"), grpc.StatusCode.NOT_FOUND),
        (ValueError("no such architecture"), grpc.StatusCode.INVALID_ARGUMENT),
        (RuntimeError("the device is gone"), grpc.StatusCode.INTERNAL),
    ],
)
async def test_failed_load_is_told_and_can_be_tried_again(worker, executor, error, code):
    """A failed load ends LoadModel with its status and shows in Describe; another try can succeed."""
    executor.load_error = error
    executor.gate.set()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await worker.load()
    assert failed.value.code() is code
    described = await worker.describe()
    assert described.state == lifecycle_pb2.WORKER_STATE_FAILED
    assert str(error) in described.failure
    executor.load_error = None
    assert (await worker.load(path="model-b"))[-1].phase == lifecycle_pb2.LOAD_PHASE_READY


async def test_nothing_to_join_is_refused(settings, executor):
    """A worker that was given no model has no load to join, and no blocks to allocate."""
    service = WorkerService(settings, executor, None)
    async with service, connect(service.server.address) as channel:
        worker = Worker(service, channel)
        assert (await worker.describe()).state == lifecycle_pb2.WORKER_STATE_EMPTY
        with pytest.raises(grpc.aio.AioRpcError, match="name one by its path"):
            await worker.load()
        with pytest.raises(grpc.aio.AioRpcError, match="after the load"):
            await worker.allocate()
        executor.gate.set()
        assert (await worker.load(path="x", served_model_name="named"))[-1].model.id == "named"


async def test_allocation_is_idempotent(ready):
    """The same sizes, or none, answer the same pool; other sizes are FAILED_PRECONDITION."""
    pool = (await ready.describe()).pool
    assert await ready.allocate() == pool
    assert await ready.allocate(lifecycle_pb2.AllocateBlocksRequest()) == pool
    other = lifecycle_pb2.AllocateBlocksRequest(block_size=16, num_blocks=64)
    with pytest.raises(grpc.aio.AioRpcError, match="allocated already") as refused:
        await ready.allocate(other)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PoolTooLarge("needs 9 GiB, 1 GiB is free"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ValueError("block_size must be a multiple of 16"), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_impossible_pool_is_refused_with_the_numbers(worker, executor, error, code):
    """What the executor says about sizes reaches the caller, and a better request can follow."""
    executor.gate.set()
    await worker.load()
    executor.allocate_error = error
    with pytest.raises(grpc.aio.AioRpcError, match=str(error)) as refused:
        await worker.allocate()
    assert refused.value.code() is code
    executor.allocate_error = None
    assert (await worker.allocate()).num_blocks == 32


async def test_steps_are_answered_in_order(ready):
    """Two steps sent at once bring two results, and the second used the token of the first."""
    call = await ready.open(1)
    await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    await call.write(step(2, [0], [1]))
    first, second = (await call.read()).result, (await call.read()).result
    assert (first.step_id, list(first.slots), second.step_id) == (1, [0], 2)
    assert first.token_ids != second.token_ids
    assert first.sampled_at_unix_us > 0


async def test_closing_the_stream_answers_what_was_sent(ready):
    """Half-closing after two steps still brings both results, then OK."""
    call = await ready.open(1)
    await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    await call.write(step(2, [0], [1]))
    await call.done_writing()
    assert [(await call.read()).result.step_id for _ in range(2)] == [1, 2]
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_a_stream_ends_with_empty_slots(ready):
    """After a stream has ended the next one may place sequences in the same slots, with any step number."""
    call = await ready.open(1)
    await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    await call.read()
    call.cancel()
    call = await ready.open(2)
    await call.write(step(9, [0], [3], [(0, [5, 6, 7], 1)]))
    assert (await call.read()).result.step_id == 9


async def test_stale_epoch_is_refused(ready):
    """An epoch not above the last is FAILED_PRECONDITION, and the running stream goes on."""
    call = await ready.open(5)
    for epoch in (4, 5):
        stale = ready.stub.Execute()
        await stale.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=epoch)))
        assert await code_of(stale) is grpc.StatusCode.FAILED_PRECONDITION
    await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    assert (await call.read()).result.step_id == 1
    assert (await ready.describe()).epoch == 5


async def test_newer_epoch_ends_the_older_stream(ready):
    """A takeover ends the older stream with ABORTED before the new one is opened, with empty slots."""
    older = await ready.open(1)
    await older.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    await older.read()
    newer = await ready.open(2)
    assert await code_of(older) is grpc.StatusCode.ABORTED
    await newer.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    assert (await newer.read()).result.step_id == 1


async def test_takeover_waits_for_the_steps_under_way(settings, executor):
    """A new scheduler's stream opens only after the older one's steps have ended."""
    slow = SimulatedWorkerSettings(listen="127.0.0.1:0", max_model_len=128, step_base_ms=50)
    executor = SimulatedExecutor(slow.simulated_model())
    service = WorkerService(slow, executor, ModelSource("m"))
    async with service, connect(service.server.address) as channel:
        worker = Worker(service, channel)
        await worker.load()
        await worker.allocate()
        older = await worker.open(1)
        await older.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
        await older.write(step(2, [0], [1]))
        await asyncio.sleep(0.02)
        await worker.open(2)
        assert not executor._due
        assert await code_of(older) is grpc.StatusCode.ABORTED


async def test_client_that_goes_while_the_worker_stops_leaves_nothing_waiting():
    """A call cancelled while its slots are being emptied does not keep the worker from ending."""
    slow = SimulatedWorkerSettings(listen="127.0.0.1:0", max_model_len=128, step_base_ms=30)
    service = WorkerService(slow, SimulatedExecutor(slow.simulated_model()), ModelSource("m"))
    async with service, connect(service.server.address) as channel:
        worker = Worker(service, channel)
        await worker.load()
        await worker.allocate()
        call = await worker.open(1)
        await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
        await call.write(step(2, [0], [1]))
        await asyncio.sleep(0.01)
        stopping = asyncio.create_task(service._servicer.end_stream())
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait_for(stopping, 5)


async def test_malformed_step_ends_the_stream(ready):
    """A step that breaks the contract is INVALID_ARGUMENT with the reason; a new epoch starts clean."""
    call = await ready.open(1)
    await call.write(step(1, [3], [1]))
    assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert "slot 3 is empty" in await call.details()
    await ready.open(2)


async def test_failing_device_is_internal(ready, executor):
    """An exception that is no ValueError is INTERNAL and tells the client nothing of the inside."""
    executor.submit = lambda plan, deliver: deliver(RuntimeError("secret address"))
    call = await ready.open(1)
    await call.write(step(1, [0], [3], [(0, [5, 6, 7], 1)]))
    assert await code_of(call) is grpc.StatusCode.INTERNAL
    assert "secret" not in await call.details()


async def test_open_comes_first_and_once(ready):
    """A step before open is FAILED_PRECONDITION; a second open is INVALID_ARGUMENT."""
    call = ready.stub.Execute()
    await call.write(step(1, [0], [1]))
    assert await code_of(call) is grpc.StatusCode.FAILED_PRECONDITION
    call = await ready.open(1)
    await call.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=2)))
    assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_execute_needs_a_pool(worker):
    """Execute before AllocateBlocks is FAILED_PRECONDITION and takes no epoch."""
    call = worker.stub.Execute()
    await call.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=3)))
    assert await code_of(call) is grpc.StatusCode.FAILED_PRECONDITION
    assert (await worker.describe()).epoch == 0


async def test_stopping_worker_tells_its_scheduler(settings, executor):
    """A worker that ends closes the step stream with UNAVAILABLE."""
    executor.gate.set()
    service = WorkerService(settings, executor, ModelSource("model-a"))
    await service.start()
    async with connect(service.server.address) as channel:
        worker = Worker(service, channel)
        await worker.load()
        await worker.allocate()
        call = await worker.open(1)
        await service.__aexit__(None, None, None)
        assert await code_of(call) is grpc.StatusCode.UNAVAILABLE


async def test_status_and_what_means_nothing_here(ready):
    """GetStatus tells state and streams; Drain is UNIMPLEMENTED: the scheduler's business."""
    stub = admin_service_pb2_grpc.AdminStub(ready.channel)
    await ready.open(1)
    status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.service == "worker"
    assert status.state == admin_service_pb2.SERVICE_STATE_SERVING
    assert status.num_in_flight == 1
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Drain(admin_service_pb2.DrainRequest())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
