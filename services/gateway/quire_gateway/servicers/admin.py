"""quire.admin.v1.Admin on the gateway: status, drain and resume."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_gateway import __version__
from quire_gateway.admission import Admission

SERVICE_NAME: str = admin_service_pb2.DESCRIPTOR.services_by_name["Admin"].full_name


class Readiness(Protocol):
    """What decides whether the gateway can serve."""

    @property
    def has_dependencies(self) -> bool:
        """Everything needed is there."""

    def update(self) -> None:
        """Something changed."""


class AdminServicer(admin_service_pb2_grpc.AdminServicer):
    """Operations on one gateway process; what means nothing here answers UNIMPLEMENTED."""

    def __init__(self, admission: Admission, readiness: Readiness, *, drain_timeout_s: float) -> None:
        self._admission, self._readiness, self._drain_timeout_s = admission, readiness, drain_timeout_s
        self._has_served = False
        self._started_at = Timestamp()
        self._started_at.GetCurrentTime()

    async def GetStatus(
        self, request: admin_service_pb2.GetStatusRequest, context: Any
    ) -> admin_service_pb2.GetStatusResponse:
        """See the contract."""
        return admin_service_pb2.GetStatusResponse(
            service="gateway",
            version=__version__,
            state=self._state(),
            started_at=self._started_at,
            num_in_flight=self._admission.num_in_flight,
            pid=os.getpid(),
        )

    async def Drain(
        self, request: admin_service_pb2.DrainRequest, context: Any
    ) -> admin_service_pb2.DrainResponse:
        """See the contract."""
        timeout_s = (
            request.timeout.ToMilliseconds() / 1000 if request.HasField("timeout") else self._drain_timeout_s
        )
        self._admission.is_draining = True
        self._readiness.update()
        try:
            async with asyncio.timeout(timeout_s):
                await self._admission.wait_idle()
        except TimeoutError:
            # Told by the answer: what still runs goes on.
            return admin_service_pb2.DrainResponse(num_in_flight=self._admission.num_in_flight)
        return admin_service_pb2.DrainResponse()

    async def Resume(
        self, request: admin_service_pb2.ResumeRequest, context: Any
    ) -> admin_service_pb2.ResumeResponse:
        """See the contract."""
        self._admission.is_draining = False
        self._readiness.update()
        return admin_service_pb2.ResumeResponse()

    def _state(self) -> admin_service_pb2.ServiceState:
        if self._admission.is_draining:
            return admin_service_pb2.SERVICE_STATE_DRAINING
        if self._readiness.has_dependencies:
            self._has_served = True
            return admin_service_pb2.SERVICE_STATE_SERVING
        if self._has_served:
            return admin_service_pb2.SERVICE_STATE_DEGRADED
        return admin_service_pb2.SERVICE_STATE_STARTING
