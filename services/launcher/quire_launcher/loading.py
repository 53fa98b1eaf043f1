"""Follows the worker's load and reports how far it is.

One job: read LoadModel's stream. The worker loads by itself; this call only joins and watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire_launcher.readiness import until_listening

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
