"""Workers that die, hang, restart or get taken over, as the scheduler and its gateways see it."""

import asyncio
import signal
import socket
import sys

import grpc
import pytest

from quire.admin.v1 import admin_service_pb2
from quire.scheduler.v1 import load_pb2
from quire.worker.v1 import lifecycle_pb2, step_pb2, worker_service_pb2_grpc
from quire_servicekit.channel import connect
from quire_worker.simulated.executor import SimulatedExecutor

PROMPT = list(range(100, 140))


async def undisturbed(pipeline, handles, max_tokens):
    """What each request brings when nothing goes wrong."""
    gateway = await pipeline.gateway()
    for handle in handles:
        await gateway.submit(handle, [handle, *PROMPT], max_tokens=max_tokens)
    await gateway.until_finished(*handles)
    return {handle: gateway.tokens[handle, 0] for handle in handles}


async def test_streams_survive_a_worker_restart(pipeline):
    """The worker ends and comes back mid-stream: NOT_SERVING meanwhile, then every stream ends as undisturbed."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    handles = range(12)
    expected = await undisturbed(pipeline, handles, 60)
    gateway = await pipeline.gateway()
    for handle in handles:
        await gateway.submit(handle, [handle, *PROMPT], max_tokens=60)
    await gateway.until(lambda: any(len(tokens) > 20 for tokens in gateway.tokens.values()))
    await pipeline.stop_worker()
    await pipeline.until_healthy(False)
    load = await pipeline.load()
    assert load.num_running == 0
    assert load.num_waiting == 12 - len(gateway.finished)
    await pipeline.start_worker()
    await pipeline.until_healthy()
    await gateway.until_finished(*handles)
    assert {handle: gateway.tokens[handle, 0] for handle in handles} == expected
    assert gateway.rejections == {}


async def test_requests_submitted_without_a_worker_wait(pipeline):
    """A request that comes while the worker is away waits, and runs when it is back."""
    await pipeline.start_worker()
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await pipeline.stop_worker()
    await pipeline.until_healthy(False)
    await gateway.submit(1, PROMPT)
    await pipeline.until_load(lambda load: load.num_waiting == 1)
    await pipeline.start_worker()
    await gateway.until_finished(1)


async def test_worker_that_comes_back_with_a_smaller_pool(pipeline):
    """Requests that no longer fit are rejected with the numbers; the others go on."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, range(300), max_tokens=200)
    await gateway.submit(2, PROMPT, max_tokens=100)
    await gateway.until(lambda: (1, 0) in gateway.tokens and (2, 0) in gateway.tokens)
    await pipeline.stop_worker()
    await pipeline.start_worker(num_blocks=17)
    await gateway.until_finished(2)
    assert "256" in gateway.rejections[1].message


async def test_worker_with_another_model_is_refused(pipeline):
    """A worker that comes back with another model gets no steps; the scheduler waits for the right one."""
    await pipeline.start_worker()
    await pipeline.start_scheduler()
    await pipeline.stop_worker()
    await pipeline.start_worker(vocab_size=20000)
    async with asyncio.timeout(5):
        while not pipeline.executor.device or not pipeline.worker.lifecycle.pool:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert not await pipeline.is_healthy()
    await pipeline.stop_worker()
    await pipeline.start_worker()
    await pipeline.until_healthy()


async def test_worker_whose_load_failed_is_waited_for(pipeline, monkeypatch):
    """A worker that could not load its model gets no steps; once another stands there the scheduler serves."""

    def fail(self, source, report):
        raise ValueError("weights are torn")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedExecutor, "load", fail)
        await pipeline.start_worker()
        await pipeline.start_scheduler(healthy=False)
        async with asyncio.timeout(5):
            while "torn" not in (await describe(pipeline)).failure:
                await asyncio.sleep(0.005)
        with pytest.raises(grpc.aio.AioRpcError, match="has not reached its worker"):
            await pipeline.gateway()
        status = await pipeline.admin.GetStatus(admin_service_pb2.GetStatusRequest())
        assert status.state == admin_service_pb2.SERVICE_STATE_STARTING
        await pipeline.stop_worker()
    await pipeline.start_worker()
    await pipeline.until_healthy()


async def test_status_follows_the_worker(pipeline):
    """SERVING with a worker, DEGRADED when it is lost, and GetLoad says whether there is one."""
    await pipeline.start_worker()
    await pipeline.start_scheduler()
    status = await pipeline.admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_SERVING
    await pipeline.stop_worker()
    await pipeline.until_healthy(False)
    status = await pipeline.admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_DEGRADED
    assert not (await pipeline.stub.GetLoad(load_pb2.GetLoadRequest())).has_worker


async def test_drain_asked_before_the_worker_came_is_kept(pipeline):
    """A scheduler that is told to drain before it has a worker takes no requests when the worker comes."""
    await pipeline.start_worker()
    await pipeline.stop_worker()
    await pipeline.start_scheduler(healthy=False)
    assert (await pipeline.admin.Drain(admin_service_pb2.DrainRequest())).num_in_flight == 0
    await pipeline.start_worker()
    async with asyncio.timeout(5):
        while not (await pipeline.stub.GetLoad(load_pb2.GetLoadRequest())).has_worker:
            await asyncio.sleep(0.005)
    status = await pipeline.admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_DRAINING
    with pytest.raises(grpc.aio.AioRpcError, match="draining"):
        await pipeline.gateway()
    await pipeline.admin.Resume(admin_service_pb2.ResumeRequest())
    await pipeline.until_healthy()
    await pipeline.gateway()


async def test_hung_worker_turns_health_off(pipeline):
    """Sequences run and no step ends: NOT_SERVING after the limit, and SERVING again once steps end."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler(stall_timeout_s=0.2)
    gateway = await pipeline.gateway()
    await asyncio.sleep(0.3)
    assert await pipeline.is_healthy()
    await gateway.submit(1, PROMPT, max_tokens=100)
    await gateway.until(lambda: (1, 0) in gateway.tokens)
    pipeline.executor.hold()
    await pipeline.until_healthy(False)
    pipeline.executor.release()
    await pipeline.until_healthy()
    await gateway.until_finished(1)


async def test_malformed_plan_costs_an_epoch_not_a_request(pipeline):
    """A step the worker refuses ends the step stream; the scheduler takes over anew and the request goes on."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    expected = await undisturbed(pipeline, [1], 40)
    gateway = await pipeline.gateway()
    await gateway.submit(1, [1, *PROMPT], max_tokens=40)
    await gateway.until(lambda: len(gateway.tokens.get((1, 0), [])) > 5)
    # Whatever breaks it: here the worker has forgotten its sequences.
    pipeline.executor._runner.reset()
    await gateway.until_finished(1)
    assert gateway.tokens[1, 0] == expected[1]
    epochs = (await describe(pipeline)).epoch
    assert epochs == 2


async def describe(pipeline):
    """The worker's Describe."""
    async with connect(pipeline.worker.server.address) as channel:
        return await worker_service_pb2_grpc.WorkerStub(channel).Describe(lifecycle_pb2.DescribeRequest())


async def test_another_scheduler_takes_over(pipeline):
    """A stream with a higher epoch ends the scheduler's with ABORTED; later the scheduler comes back above it."""
    await pipeline.start_worker()
    await pipeline.start_scheduler(takeover_delay_s=0.2)
    async with connect(pipeline.worker.server.address) as channel:
        call = worker_service_pb2_grpc.WorkerStub(channel).Execute()
        await call.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=10, scheduler_id="other")))
        assert (await call.read()).opened.epoch == 10
        with pytest.raises(grpc.aio.AioRpcError, match="epoch 11 took this worker over"):
            await call.read()
    await pipeline.until_healthy()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT)
    await gateway.until_finished(1)


async def test_scheduler_restart_needs_no_new_load(pipeline):
    """A second scheduler process takes the loaded worker over as it is and serves."""
    await pipeline.start_worker()
    await pipeline.start_scheduler()
    created = (await describe(pipeline)).model.created_unix_s
    await pipeline.scheduler.__aexit__(None, None, None)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT)
    await gateway.until_finished(1)
    described = await describe(pipeline)
    assert described.epoch == 2
    assert described.model.created_unix_s == created


async def test_sigterm_drains_the_process(pipeline):
    """On SIGTERM the scheduler process finishes the running request, ends the stream, and exits with 0."""
    await pipeline.start_worker(step_base_ms=2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire_scheduler.main", "--listen", address,
        "--worker", pipeline.worker.server.address, "--log-level", "warning",
    )  # fmt: skip
    try:
        async with connect(address) as channel:
            pipeline.use_channel(channel)
            await pipeline.until_healthy()
            gateway = await pipeline.gateway()
            await gateway.submit(1, PROMPT, max_tokens=100)
            await gateway.until(lambda: (1, 0) in gateway.tokens)
            process.send_signal(signal.SIGTERM)
            await gateway.until_finished(1)
            assert await asyncio.wait_for(process.wait(), 10) == 0
            await gateway.until(lambda: gateway.status is not None)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert len(gateway.tokens[1, 0]) == 100
    assert gateway.status is grpc.StatusCode.UNAVAILABLE
