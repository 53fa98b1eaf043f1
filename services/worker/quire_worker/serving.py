"""Serves one executor as a worker: server, servicers, health, metrics, and the orderly end. Shared by both workers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from quire.admin.v1 import admin_service_pb2_grpc
from quire.worker.v1 import worker_service_pb2_grpc
from quire_servicekit.logging import get_logger
from quire_servicekit.metrics import Metrics
from quire_servicekit.server import ServiceServer
from quire_servicekit.settings import ServiceSettings
from quire_worker.executor import Executor, ModelSource
from quire_worker.lifecycle import Lifecycle, WorkerState
from quire_worker.metrics import WorkerMetrics
from quire_worker.servicer import WorkerServicer
from quire_worker.servicer_admin import Profiler, WorkerAdmin

log = get_logger("worker")

WORKER_SERVICE = "quire.worker.v1.Worker"
SERVICE_NAMES = (WORKER_SERVICE, "quire.admin.v1.Admin")


class WorkerService:
    """A running worker. `async with` it for tests; `serve` runs one until a signal ends it."""

    def __init__(
        self,
        settings: ServiceSettings,
        executor: Executor,
        source: ModelSource | None,
        profiler: Profiler | None = None,
    ) -> None:
        """`source`: the model to load at once; None waits for LoadModel. Needs a running loop."""
        self.server = ServiceServer(settings, names=SERVICE_NAMES)
        self._metrics = Metrics("worker")
        self._executor = executor
        self._source = source
        self._health_tasks: set[asyncio.Task[None]] = set()
        self.lifecycle = Lifecycle(executor, self._on_change)
        self._servicer = servicer = WorkerServicer(
            executor, self.lifecycle, WorkerMetrics(self._metrics.registry)
        )
        admin = WorkerAdmin(self.lifecycle, lambda: servicer.has_stream, servicer.end_stream, profiler)
        worker_service_pb2_grpc.add_WorkerServicer_to_server(servicer, self.server.grpc)
        admin_service_pb2_grpc.add_AdminServicer_to_server(admin, self.server.grpc)

    async def start(self) -> None:
        """Answer RPCs, then begin to load: Describe and LoadModel work while the weights come in."""
        await self.server.start()
        self._metrics.serve(self.server.settings.metrics_listen)
        if self._source is not None:
            self.lifecycle.start_load(self._source)

    async def run_until_stopped(self) -> None:
        """Until a signal. There is nothing to drain: the scheduler keeps every sequence."""
        await self.server.run_until_stopped(self._servicer.end_stream)

    async def close(self) -> None:
        """Free what the executor and the metrics page hold."""
        await self.lifecycle.close()
        await asyncio.gather(*self._health_tasks)
        self._executor.close()
        self._metrics.close()

    async def __aenter__(self) -> WorkerService:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._servicer.end_stream()
        await self.server.grpc.stop(0)
        await self.close()

    def _on_change(self) -> None:
        lifecycle = self.lifecycle
        log.info("state changed", state=lifecycle.state.name, failure=lifecycle.failure or None)
        if lifecycle.state is WorkerState.READY:
            self._publish(self.server.ready())
        elif lifecycle.is_asleep:
            self._publish(self.server.health.set_ready(False))

    def _publish(self, health: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(health)
        self._health_tasks.add(task)
        task.add_done_callback(self._health_tasks.discard)


async def serve(
    settings: ServiceSettings,
    executor: Executor,
    source: ModelSource | None,
    profiler: Profiler | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    service = WorkerService(settings, executor, source, profiler)
    await service.start()
    try:
        await service.run_until_stopped()
    finally:
        await service.close()
