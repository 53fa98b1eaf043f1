"""The worker's Admin service: status, sleep and wake, profiles. Draining and pausing are the scheduler's business."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_servicekit.errors import FailedPrecondition
from quire_servicekit.logging import get_logger
from quire_worker.lifecycle import Lifecycle, WorkerState

log = get_logger("worker")

VERSION = "0.1.0"


class Profiler(Protocol):
    """What records profiles; both methods block."""

    def start(self) -> None:
        """Begin. Raises FailedPrecondition."""

    def stop(self) -> Path:
        """Write what was recorded. Raises FailedPrecondition."""


class WorkerAdmin(admin_service_pb2_grpc.AdminServicer):
    """What means nothing for a worker answers UNIMPLEMENTED, as the generated base class does."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        has_stream: Callable[[], bool],
        end_stream: Callable[[], Awaitable[None]],
        profiler: Profiler | None = None,
    ) -> None:
        """end_stream: ends the step stream and returns when the slots are empty. profiler: None refuses profiles."""
        self._lifecycle, self._has_stream, self._end_stream = lifecycle, has_stream, end_stream
        self._profiler = profiler
        self._started_at = Timestamp()
        self._started_at.GetCurrentTime()

    async def GetStatus(
        self, request: admin_service_pb2.GetStatusRequest, context: Any
    ) -> admin_service_pb2.GetStatusResponse:
        """See the contract."""
        state = {
            WorkerState.READY: admin_service_pb2.SERVICE_STATE_SERVING,
            WorkerState.FAILED: admin_service_pb2.SERVICE_STATE_DEGRADED,
            WorkerState.EMPTY: admin_service_pb2.SERVICE_STATE_ASLEEP
            if self._lifecycle.is_asleep
            else admin_service_pb2.SERVICE_STATE_STARTING,
        }.get(self._lifecycle.state, admin_service_pb2.SERVICE_STATE_STARTING)
        return admin_service_pb2.GetStatusResponse(
            service="worker",
            version=VERSION,
            state=state,
            started_at=self._started_at,
            num_in_flight=int(self._has_stream()),
            pid=os.getpid(),
        )

    async def Sleep(
        self, request: admin_service_pb2.SleepRequest, context: Any
    ) -> admin_service_pb2.SleepResponse:
        """See the contract."""
        self._lifecycle.check_may_sleep()
        await self._end_stream()
        await self._lifecycle.sleep()
        return admin_service_pb2.SleepResponse()

    async def Wake(
        self, request: admin_service_pb2.WakeRequest, context: Any
    ) -> admin_service_pb2.WakeResponse:
        """Begins to load again; the scheduler joins the load, as at a start."""
        self._lifecycle.wake()
        return admin_service_pb2.WakeResponse()

    async def StartProfile(
        self, request: admin_service_pb2.StartProfileRequest, context: Any
    ) -> admin_service_pb2.StartProfileResponse:
        """See the contract."""
        await asyncio.to_thread(self._require_profiler().start)
        log.info("profile started")
        return admin_service_pb2.StartProfileResponse()

    async def StopProfile(
        self, request: admin_service_pb2.StopProfileRequest, context: Any
    ) -> admin_service_pb2.StopProfileResponse:
        """See the contract."""
        path = await asyncio.to_thread(self._require_profiler().stop)
        log.info("profile written", path=str(path))
        return admin_service_pb2.StopProfileResponse(path=str(path))

    def _require_profiler(self) -> Profiler:
        if self._profiler is None:
            raise FailedPrecondition("this worker records no profiles")
        return self._profiler
