"""The scheduler's Admin service: status, drain, pause, resume, sleep, wake; profiles of its worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_scheduler.engine import Engine
from quire_servicekit.error_details import error_of
from quire_servicekit.logging import get_logger

log = get_logger("scheduler")

VERSION = "0.1.0"

Answer = TypeVar("Answer")


class SchedulerAdmin(admin_service_pb2_grpc.AdminServicer):
    """The contract's Admin service."""

    def __init__(self, engine: Engine, worker: grpc.aio.Channel, drain_timeout_s: float) -> None:
        self._engine = engine
        self._worker = admin_service_pb2_grpc.AdminStub(worker)
        self._drain_timeout_s = drain_timeout_s
        self._started_at = Timestamp()
        self._started_at.GetCurrentTime()

    async def GetStatus(
        self, request: admin_service_pb2.GetStatusRequest, context: Any
    ) -> admin_service_pb2.GetStatusResponse:
        """See the contract."""
        return admin_service_pb2.GetStatusResponse(
            service="scheduler",
            version=VERSION,
            state=self._state(),
            started_at=self._started_at,
            num_in_flight=self._engine.num_requests,
            pid=os.getpid(),
        )

    async def Drain(
        self, request: admin_service_pb2.DrainRequest, context: Any
    ) -> admin_service_pb2.DrainResponse:
        """See the contract."""
        timeout_s = self._drain_timeout_s
        if request.HasField("timeout"):
            timeout_s = request.timeout.ToTimedelta().total_seconds()
        log.info("draining", timeout_s=timeout_s, num_requests=self._engine.num_requests)
        try:
            async with asyncio.timeout(timeout_s):
                await self._engine.drain()
        except TimeoutError:
            log.warning("drain timed out", num_requests=self._engine.num_requests)
        return admin_service_pb2.DrainResponse(num_in_flight=self._engine.num_requests)

    async def Pause(
        self, request: admin_service_pb2.PauseRequest, context: Any
    ) -> admin_service_pb2.PauseResponse:
        """See the contract."""
        log.info("paused")
        self._engine.pause()
        return admin_service_pb2.PauseResponse()

    async def Resume(
        self, request: admin_service_pb2.ResumeRequest, context: Any
    ) -> admin_service_pb2.ResumeResponse:
        """See the contract."""
        log.info("resumed")
        self._engine.resume()
        return admin_service_pb2.ResumeResponse()

    async def Sleep(
        self, request: admin_service_pb2.SleepRequest, context: Any
    ) -> admin_service_pb2.SleepResponse:
        """See the contract."""
        log.info("going to sleep", num_requests=self._engine.num_requests)
        await self._engine.gate.sleep()
        return admin_service_pb2.SleepResponse()

    async def Wake(
        self, request: admin_service_pb2.WakeRequest, context: Any
    ) -> admin_service_pb2.WakeResponse:
        """See the contract."""
        await self._engine.gate.wake()
        log.info("awake", num_requests=self._engine.num_requests)
        return admin_service_pb2.WakeResponse()

    async def StartProfile(
        self, request: admin_service_pb2.StartProfileRequest, context: Any
    ) -> admin_service_pb2.StartProfileResponse:
        """The worker's: what the scheduler itself does shows in its metrics."""
        return await self._of_worker(self._worker.StartProfile(request))

    async def StopProfile(
        self, request: admin_service_pb2.StopProfileRequest, context: Any
    ) -> admin_service_pb2.StopProfileResponse:
        """The worker's."""
        return await self._of_worker(self._worker.StopProfile(request))

    async def _of_worker(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from failure

    def _state(self) -> admin_service_pb2.ServiceState:
        engine = self._engine
        if engine.is_draining:
            return admin_service_pb2.SERVICE_STATE_DRAINING
        if engine.gate.is_asleep:
            return admin_service_pb2.SERVICE_STATE_ASLEEP
        if engine.core is None:
            return admin_service_pb2.SERVICE_STATE_STARTING
        if engine.is_paused:
            return admin_service_pb2.SERVICE_STATE_PAUSED
        if not engine.is_ready:
            return admin_service_pb2.SERVICE_STATE_DEGRADED
        return admin_service_pb2.SERVICE_STATE_SERVING
