"""Sleep: the worker gives its memory back, the scheduler keeps every sequence and waits.

One job: when the engine may look for its worker, and who waits for that. Sequences fare as when a worker is lost: they
are computed again. It must not know the core.
"""

from __future__ import annotations

import asyncio

import grpc

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire_servicekit.error_details import error_of


class SleepGate:
    """Closed while the engine sleeps."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """channel: to the worker."""
        self._worker = admin_service_pb2_grpc.AdminStub(channel)
        self._open = asyncio.Event()
        self._open.set()
        self._connected = asyncio.Event()

    @property
    def is_asleep(self) -> bool:
        """No worker is looked for."""
        return not self._open.is_set()

    async def wait_open(self) -> None:
        """Return when the worker may be looked for."""
        await self._open.wait()

    def note_connected(self, is_connected: bool) -> None:
        """The engine found, or lost, its worker."""
        if is_connected:
            self._connected.set()
        else:
            self._connected.clear()

    async def sleep(self) -> None:
        """Close the gate and have the worker end the step stream and give its memory back.

        Raises what the worker said; the gate is open again then.
        """
        self._open.clear()
        try:
            await self._worker.Sleep(admin_service_pb2.SleepRequest())
        except grpc.aio.AioRpcError as failure:
            self._open.set()
            raise error_of(failure) from failure

    async def wake(self) -> None:
        """Have the worker load again and return when the engine has it. Cancelling the wait undoes nothing."""
        try:
            await self._worker.Wake(admin_service_pb2.WakeRequest())
        except grpc.aio.AioRpcError as failure:
            raise error_of(failure) from failure
        self._open.set()
        await self._connected.wait()
