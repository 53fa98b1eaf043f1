"""Sleep and wake through scheduler and worker, as an operator and the gateways see them."""

import asyncio

import grpc
import pytest

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.worker.v1 import lifecycle_pb2, worker_service_pb2_grpc
from quire_servicekit.channel import connect

PROMPT = list(range(100, 140))


async def tokens_of(pipeline, handle, max_tokens):
    """What the request brings when nothing goes on beside it."""
    gateway = await pipeline.gateway()
    await gateway.submit(handle, PROMPT, max_tokens=max_tokens)
    await gateway.until_finished(handle)
    return gateway.tokens[handle, 0]


async def test_a_stream_goes_on_after_sleep_and_wake(pipeline):
    """Running sequences pause while the worker's memory is given back, and end as if nothing had happened."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    expected = await tokens_of(pipeline, 5, 80)
    gateway = await pipeline.gateway()
    await gateway.submit(5, PROMPT, max_tokens=80)
    await gateway.until(lambda: len(gateway.tokens.get((5, 0), [])) > 20)
    await pipeline.admin.Sleep(admin_service_pb2.SleepRequest())
    await pipeline.until_healthy(False)
    assert pipeline.worker.lifecycle.model is None
    assert pipeline.worker.lifecycle.pool is None
    status = await pipeline.admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_ASLEEP
    num_tokens = len(gateway.tokens[5, 0])
    await asyncio.sleep(0.1)
    assert len(gateway.tokens[5, 0]) == num_tokens
    await pipeline.admin.Wake(admin_service_pb2.WakeRequest())
    await pipeline.until_healthy()
    await gateway.until_finished(5)
    assert gateway.tokens[5, 0] == expected
    assert gateway.rejections == {}


async def test_requests_that_come_while_it_sleeps_wait(running):
    """A request submitted to a sleeping engine is queued and runs after Wake."""
    await running.admin.Sleep(admin_service_pb2.SleepRequest())
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=4)
    await running.until_load(lambda load: load.num_waiting == 1)
    await running.admin.Wake(admin_service_pb2.WakeRequest())
    await gateway.until_finished(1)
    assert len(gateway.tokens[1, 0]) == 4


async def test_sleep_and_wake_are_idempotent(running):
    """A second Sleep or Wake changes nothing and is no error."""
    for _ in range(2):
        await running.admin.Sleep(admin_service_pb2.SleepRequest())
    for _ in range(2):
        await running.admin.Wake(admin_service_pb2.WakeRequest())
    assert len(await tokens_of(running, 1, 4)) == 4


async def test_a_sleeping_worker_tells_a_new_scheduler_so(running):
    """Joining the load of a sleeping worker is refused with the reason, so that its operator knows what to undo."""
    await running.admin.Sleep(admin_service_pb2.SleepRequest())
    channel = connect(running.worker.server.address)
    stub = worker_service_pb2_grpc.WorkerStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stub.LoadModel(lifecycle_pb2.LoadModelRequest()).read()
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "asleep" in refusal.value.details()
    worker = admin_service_pb2_grpc.AdminStub(channel)
    status = await worker.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_ASLEEP
    await channel.close()


async def test_a_worker_that_records_no_profiles_says_so_through_the_scheduler(running):
    """StartProfile on the scheduler gives the worker's own refusal."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await running.admin.StartProfile(admin_service_pb2.StartProfileRequest())
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "profiles" in refusal.value.details()
