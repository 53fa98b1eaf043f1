"""Health by grpc.health.v1: "" says the process lives, a service's full name says it can serve *now*.

One job: hold the two and answer Check and Watch. What readiness means is the service's to decide; it calls
`set_ready`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health service of one server."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """`names`: full names of the services whose readiness this reports, as in their contracts."""
        self.names = tuple(names)
        self.ready = False
        self.draining = False
        self._servicer = health.aio.HealthServicer()

    async def attach(self, server: grpc.aio.Server) -> None:
        """Add the health service to `server`; alive from now on, not ready."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        await self._servicer.set("", SERVING)
        await self._publish()

    async def set_ready(self, ready: bool) -> None:
        """Say whether the services can serve now. Without effect on a server that drains."""
        if ready != self.ready:
            self.ready = ready
            await self._publish()

    async def drain(self) -> None:
        """NOT_SERVING from now on, whatever set_ready says, so that nobody sends new work here."""
        self.draining = True
        await self._servicer.set("", NOT_SERVING)
        await self._publish()

    async def _publish(self) -> None:
        status = SERVING if self.ready and not self.draining else NOT_SERVING
        for name in self.names:
            await self._servicer.set(name, status)


async def check(channel: grpc.aio.Channel, service: str = "", *, timeout_s: float = 1.0) -> bool:
    """Whether the server behind `channel` says SERVING for `service`; False also when it does not answer."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == SERVING)
