"""quire.admin.v1.Admin on the tokenizer: status, drain and resume. Pause means nothing here and is UNIMPLEMENTED."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_servicekit.health import Health
from quire_servicekit.interceptors import ActiveRpcs

ADMIN_NAME: str = admin_service_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
VERSION = "0.1.0"


class TokenizerAdmin(admin_service_pb2_grpc.AdminServicer):
    """Operations on one tokenizer process.

    A drained tokenizer reports NOT_SERVING and goes on answering: its callers move to another replica when they see it,
    and lose nothing until then.
    """

    def __init__(self, health: Health, work: ActiveRpcs, drain_timeout_s: float) -> None:
        self._health = health
        self._work = work
        self._drain_timeout_s = drain_timeout_s
        self._started_at = Timestamp()
        self._started_at.GetCurrentTime()

    async def GetStatus(
        self, request: admin_service_pb2.GetStatusRequest, context: Any
    ) -> admin_service_pb2.GetStatusResponse:
        """See the contract."""
        serving = self._health.ready and not self._health.draining
        return admin_service_pb2.GetStatusResponse(
            service="tokenizer",
            version=VERSION,
            state=admin_service_pb2.SERVICE_STATE_SERVING
            if serving
            else admin_service_pb2.SERVICE_STATE_DRAINING,
            started_at=self._started_at,
            num_in_flight=self._work.count,
            pid=os.getpid(),
        )

    async def Drain(
        self, request: admin_service_pb2.DrainRequest, context: Any
    ) -> admin_service_pb2.DrainResponse:
        """See the contract."""
        timeout_s = self._drain_timeout_s
        if request.HasField("timeout"):
            timeout_s = request.timeout.ToMilliseconds() / 1000
        await self._health.set_ready(False)
        try:
            async with asyncio.timeout(timeout_s):
                await self._work.wait_idle()
        except TimeoutError:
            # Told by the answer: what still runs goes on.
            return admin_service_pb2.DrainResponse(num_in_flight=self._work.count)
        return admin_service_pb2.DrainResponse(num_in_flight=self._work.count)

    async def Resume(
        self, request: admin_service_pb2.ResumeRequest, context: Any
    ) -> admin_service_pb2.ResumeResponse:
        """See the contract."""
        await self._health.set_ready(True)
        return admin_service_pb2.ResumeResponse()
