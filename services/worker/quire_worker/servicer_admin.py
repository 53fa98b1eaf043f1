"""The worker's Admin service: its status. Draining and pausing are the scheduler's business."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_worker.lifecycle import Lifecycle, WorkerState

VERSION = "0.1.0"


class WorkerAdmin(admin_service_pb2_grpc.AdminServicer):
    """GetStatus; what means nothing for a worker answers UNIMPLEMENTED, as the generated base class does."""

    def __init__(self, lifecycle: Lifecycle, has_stream: Callable[[], bool]) -> None:
        self._lifecycle = lifecycle
        self._has_stream = has_stream
        self._started_at = Timestamp()
        self._started_at.GetCurrentTime()

    async def GetStatus(
        self, request: admin_service_pb2.GetStatusRequest, context: Any
    ) -> admin_service_pb2.GetStatusResponse:
        """See the contract."""
        state = {
            WorkerState.READY: admin_service_pb2.SERVICE_STATE_SERVING,
            WorkerState.FAILED: admin_service_pb2.SERVICE_STATE_DEGRADED,
        }.get(self._lifecycle.state, admin_service_pb2.SERVICE_STATE_STARTING)
        return admin_service_pb2.GetStatusResponse(
            service="worker",
            version=VERSION,
            state=state,
            started_at=self._started_at,
            num_in_flight=int(self._has_stream()),
            pid=os.getpid(),
        )
