"""The gRPC server of a service: options, health, reflection, interceptors, and an orderly end.

One job: everything about serving that is the same for all services. It knows no contract: a service adds its servicers
to `ServiceServer.grpc` and says when it is ready.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_reflection.v1alpha import reflection

from quire_servicekit.health import Health
from quire_servicekit.interceptors import ActiveRpcs, ServiceInterceptor
from quire_servicekit.logging import get_logger
from quire_servicekit.settings import ServiceSettings
from quire_servicekit.tracing import server_interceptors

log = get_logger("server")

HEALTH_NAME = "grpc.health.v1.Health"
#: What streams that never end by themselves get to say goodbye, once the drain is over.
STOP_GRACE_S = 0.5


def server_options(settings: ServiceSettings) -> list[tuple[str, int]]:
    """gRPC's channel arguments for a server."""
    options = [
        # A port that is taken is an error, not a second server that steals half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Clients and proxies ping idle connections every second or so: never answer that with GOAWAY.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if settings.max_connection_age_s is not None:
        options.append(("grpc.max_connection_age_ms", round(settings.max_connection_age_s * 1000)))
        options.append(("grpc.max_connection_age_grace_ms", round(settings.drain_timeout_s * 1000)))
    return options


class ServiceServer:
    """A grpc.aio server with all that every service has. Use as `async with`, or start and stop it."""

    def __init__(self, settings: ServiceSettings, *, names: Sequence[str]) -> None:
        """`names`: full names of the gRPC services it offers, for health and reflection. Needs a running loop."""
        self.settings = settings
        self.health = Health(names)
        self.active = ActiveRpcs()
        self.grpc: grpc.aio.Server = grpc.aio.server(
            interceptors=[*server_interceptors(settings.otlp_endpoint), ServiceInterceptor(self.active)],
            options=server_options(settings),
        )
        self.port = 0
        self._stop = asyncio.Event()
        reflection.enable_server_reflection((*names, HEALTH_NAME, reflection.SERVICE_NAME), self.grpc)

    async def start(self) -> None:
        """Listen. Raises OSError naming the address when it cannot be bound. `port` is then the real one."""
        await self.health.attach(self.grpc)
        try:
            self.port = self.grpc.add_insecure_port(self.settings.listen)
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {self.settings.listen}: it is in use, or not an address"
            ) from error
        await self.grpc.start()
        log.info("listening", address=self.address)

    @property
    def address(self) -> str:
        """Where clients reach it: the setting, with the real port."""
        listen = self.settings.listen
        return listen if listen.startswith("unix:") else f"{listen.rsplit(':', 1)[0]}:{self.port}"

    async def ready(self) -> None:
        """Say SERVING, and move what start-up made out of the garbage collector's way."""
        gc.collect()
        gc.freeze()
        await self.health.set_ready(True)
        log.info("ready", address=self.address)

    async def run_until_stopped(self, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until SIGTERM or SIGINT (or `request_stop`), then end in order.

        NOT_SERVING first; then `drain` - by default waiting until no RPC runs - for at most drain_timeout_s; then the
        port closes and what still runs is cancelled. A service whose callers hold streams open for ever gives its own
        `drain`. A second signal ends the process at once.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self._stop.wait()
            await self.stop(drain)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def request_stop(self) -> None:
        """Begin the orderly end, as the first signal does."""
        self._stop.set()

    async def stop(self, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """The orderly end itself; see run_until_stopped."""
        await self.health.drain()
        log.info("draining", active_rpcs=self.active.count, drain_timeout_s=self.settings.drain_timeout_s)
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await (self.active.wait_idle() if drain is None else drain())
        except TimeoutError:
            log.warning("drain timed out", active_rpcs=self.active.count)
        await self.grpc.stop(STOP_GRACE_S if self.active.count else 0)
        log.info("stopped")

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            log.warning("second signal, exiting at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        self._stop.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.grpc.stop(0)


def add(server: ServiceServer, register: Callable[[Any, grpc.aio.Server], None], servicer: object) -> None:
    """Add `servicer` by its generated function: `add(server, add_SchedulerServicer_to_server, servicer)`."""
    register(servicer, server.grpc)
