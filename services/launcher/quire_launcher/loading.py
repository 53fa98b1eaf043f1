"""Follows the worker's load: how far it is, and whether it has failed.

One job: read what the worker says of its load. The worker loads by itself; this only watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire_launcher.readiness import HEALTH_NAMES, until_listening, until_serving
from quire_launcher.supervisor import CannotGetReady

#: How often a worker that loads is asked whether it has given up.
FAILURE_POLL_S = 0.5
PHASES = {1: "waiting to load", 2: "loading weights", 3: "warming up", 4: "model loaded"}


async def follow_load(address: str, report: Callable[[str, int, int], None]) -> None:
    """Call `report(phase, done, total)` until the worker on `address` has its model, or cannot say."""
    await until_listening(address)
    import grpc

    from quire.worker.v1 import lifecycle_pb2, worker_service_pb2_grpc
    from quire_servicekit.channel import connect

    channel = connect(address)
    try:
        stub = worker_service_pb2_grpc.WorkerStub(channel)
        async for progress in stub.LoadModel(lifecycle_pb2.LoadModelRequest()):
            report(PHASES.get(progress.phase, "loading"), progress.done, progress.total)
    except grpc.aio.AioRpcError:
        # The worker's own end or readiness says what there is to say; here only the bar is lost.
        await asyncio.sleep(0)
    finally:
        await channel.close()


async def until_loaded(address: str) -> None:
    """Return when the worker on `address` serves. Raises CannotGetReady when its load has failed: it says why."""
    serving = asyncio.ensure_future(until_serving(address, HEALTH_NAMES["worker"]))
    try:
        await until_listening(address)
        while not serving.done():
            if (failure := await _failure(address)) is not None:
                raise CannotGetReady(failure)
            await asyncio.wait({serving}, timeout=FAILURE_POLL_S)
    finally:
        serving.cancel()


async def _failure(address: str) -> str | None:
    """Why the worker's load failed; None while there is no failure, or no answer."""
    import grpc

    from quire.worker.v1 import lifecycle_pb2, worker_service_pb2_grpc
    from quire_servicekit.channel import connect

    channel = connect(address)
    try:
        stub = worker_service_pb2_grpc.WorkerStub(channel)
        answer = await stub.Describe(lifecycle_pb2.DescribeRequest(), timeout=2.0)
    except grpc.aio.AioRpcError:
        return None
    finally:
        await channel.close()
    return answer.failure if answer.state == lifecycle_pb2.WORKER_STATE_FAILED else None
