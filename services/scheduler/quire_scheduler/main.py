"""Wiring of the scheduler: `quire-scheduler`."""

from __future__ import annotations

import asyncio
from functools import partial

import grpc

from quire.admin.v1 import admin_service_pb2_grpc
from quire.scheduler.v1 import scheduler_service_pb2_grpc
from quire_scheduler.engine import Engine
from quire_scheduler.metrics import EngineCollector
from quire_scheduler.servicer import SchedulerServicer
from quire_scheduler.servicer_admin import SchedulerAdmin
from quire_scheduler.settings import SchedulerSettings
from quire_scheduler.tokenizer_client import fetch_vocabulary
from quire_servicekit.channel import connect
from quire_servicekit.logging import get_logger
from quire_servicekit.metrics import Metrics
from quire_servicekit.server import ServiceServer
from quire_servicekit.service import run_service

log = get_logger("scheduler")

SERVICE_NAMES = ("quire.scheduler.v1.Scheduler", "quire.admin.v1.Admin")


class SchedulerService:
    """A running scheduler. `async with` it for tests; `serve` runs one until a signal ends it."""

    def __init__(self, settings: SchedulerSettings) -> None:
        """Needs a running loop."""
        self.server = ServiceServer(settings, names=SERVICE_NAMES)
        self._settings = settings
        self._channel = connect(
            settings.worker,
            max_message_bytes=settings.max_message_bytes,
            otlp_endpoint=settings.otlp_endpoint,
        )
        self._tokenizer = self._connect_tokenizer(settings)
        self.engine = Engine(
            settings,
            self._channel,
            self._on_ready_change,
            None if self._tokenizer is None else partial(fetch_vocabulary, self._tokenizer),
        )
        # The metrics page's real port, once it is served.
        self.metrics_port: int | None = None
        self._metrics = Metrics("scheduler")
        self._metrics.registry.register(EngineCollector(self.engine))
        self._driving: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        # Whether the server was ready once: what start-up made is out of the garbage collector's way then.
        self._was_ready = False
        self._servicer = SchedulerServicer(self.engine, settings.max_unread_tokens)
        admin = SchedulerAdmin(self.engine, self._channel, settings.drain_timeout_s)
        scheduler_service_pb2_grpc.add_SchedulerServicer_to_server(self._servicer, self.server.grpc)
        admin_service_pb2_grpc.add_AdminServicer_to_server(admin, self.server.grpc)

    @staticmethod
    def _connect_tokenizer(settings: SchedulerSettings) -> grpc.aio.Channel | None:
        if not settings.tokenizer:
            return None
        return connect(settings.tokenizer, max_message_bytes=settings.max_message_bytes)

    async def start(self) -> None:
        """Listen, then look for the worker."""
        await self.server.start()
        self.metrics_port = self._metrics.serve(self._settings.metrics_listen)
        self._driving = asyncio.create_task(self.engine.run())
        self._driving.add_done_callback(self._on_driver_end)

    async def run_until_stopped(self) -> None:
        """Until a signal, and then until what runs has ended; raises what ended the driver, if a bug did."""
        assert self._driving is not None, "start first"
        await self.server.run_until_stopped(self._drain)
        if self._driving.done():
            self._driving.result()

    async def _drain(self) -> None:
        try:
            await self.engine.drain()
        finally:
            # Also when the drain has timed out.
            await self._servicer.end_streams()

    async def close(self) -> None:
        """Let go of the worker and of everything else."""
        tasks = [task for task in (self._driving, self._telling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.engine.close()
        await self.engine.constrained.close()
        await self._channel.close()
        if self._tokenizer is not None:
            await self._tokenizer.close()
        self._metrics.close()

    async def __aenter__(self) -> SchedulerService:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._servicer.end_streams()
        await self.server.grpc.stop(0)
        await self.close()

    def _on_ready_change(self, ready: bool) -> None:
        # Each change tells the newest state, whatever the one before it is still doing.
        self._telling = asyncio.create_task(self._tell_ready(self._telling))

    async def _tell_ready(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
        if self.engine.is_ready and not self._was_ready:
            self._was_ready = True
            await self.server.ready()
        else:
            await self.server.health.set_ready(self.engine.is_ready)

    def _on_driver_end(self, task: asyncio.Task[None]) -> None:
        # It never ends by itself: a bug must end the process, or it would look alive for ever.
        if not task.cancelled():
            log.error("the driver failed", exc_info=task.exception())
            self.server.request_stop()


async def serve(settings: SchedulerSettings) -> None:
    """Serve until SIGTERM or SIGINT, finish what runs, end. Raises what ended the driver, if it was a bug."""
    service = SchedulerService(settings)
    await service.start()
    try:
        await service.run_until_stopped()
    finally:
        await service.close()


def main() -> None:
    """Run until SIGTERM."""
    run_service(SchedulerSettings, serve)


if __name__ == "__main__":
    main()
