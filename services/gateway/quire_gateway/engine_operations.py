"""Operations on engines: the same call to each scheduler, and what each said.

One job: fan out and gather. One engine that is gone, or refuses, hides nothing of the others. Who may operate, and how
the answers reach an operator, is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc
from quire_servicekit.error_details import error_of
from quire_servicekit.errors import QuireError, UnknownRequest
from quire_servicekit.logging import get_logger

log = get_logger("engine operations")

#: A scheduler that lives answers at once; what takes as long as its work has no limit here.
ANSWER_TIMEOUT_S = 10.0
#: Behind a drain's own wait.
DRAIN_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one engine said: its answer, or the error."""

    engine: str
    answer: Any = None
    error: QuireError | None = None


class EngineOperations:
    """Calls the Admin service of every scheduler."""

    def __init__(self, channels: Mapping[str, grpc.aio.Channel]) -> None:
        """channels: of the schedulers, by address, in the order in which outcomes are given."""
        self._admins = {
            address: admin_service_pb2_grpc.AdminStub(channel) for address, channel in channels.items()
        }
        self._schedulers = {
            address: scheduler_service_pb2_grpc.SchedulerStub(channel)
            for address, channel in channels.items()
        }

    @property
    def engines(self) -> tuple[str, ...]:
        """Addresses of all schedulers."""
        return tuple(self._admins)

    async def status(self) -> list[Outcome]:
        """Each scheduler's GetStatusResponse."""
        request = admin_service_pb2.GetStatusRequest()
        return await self._each("", lambda e: self._admins[e].GetStatus(request, timeout=ANSWER_TIMEOUT_S))

    async def drain(self, engine: str, timeout_s: float | None) -> list[Outcome]:
        """Drain; answers are DrainResponses. Raises UnknownRequest for an engine that is not there."""
        request = admin_service_pb2.DrainRequest()
        if timeout_s is not None:
            request.timeout.CopyFrom(Duration(nanos=0, seconds=0))
            request.timeout.FromNanoseconds(round(timeout_s * 1e9))
        limit_s = None if timeout_s is None else timeout_s + DRAIN_MARGIN_S
        return await self._each(engine, lambda e: self._admins[e].Drain(request, timeout=limit_s), "drain")

    async def pause(self, engine: str) -> list[Outcome]:
        """Pause. Raises UnknownRequest for an engine that is not there; so do all below."""
        request = admin_service_pb2.PauseRequest()
        return await self._each(
            engine, lambda e: self._admins[e].Pause(request, timeout=ANSWER_TIMEOUT_S), "pause"
        )

    async def resume(self, engine: str) -> list[Outcome]:
        """Undo pause and drain."""
        request = admin_service_pb2.ResumeRequest()
        return await self._each(
            engine, lambda e: self._admins[e].Resume(request, timeout=ANSWER_TIMEOUT_S), "resume"
        )

    async def sleep(self, engine: str) -> list[Outcome]:
        """Give the memory back."""
        request = admin_service_pb2.SleepRequest()
        return await self._each(engine, lambda e: self._admins[e].Sleep(request), "sleep")

    async def wake(self, engine: str) -> list[Outcome]:
        """Undo sleep; takes as long as a load."""
        request = admin_service_pb2.WakeRequest()
        return await self._each(engine, lambda e: self._admins[e].Wake(request), "wake")

    async def reset_prefix_cache(self, engine: str) -> list[Outcome]:
        """Forget cached prefixes; answers are ResetPrefixCacheResponses of the scheduler's contract."""
        request = load_pb2.ResetPrefixCacheRequest()
        return await self._each(
            engine,
            lambda e: self._schedulers[e].ResetPrefixCache(request, timeout=ANSWER_TIMEOUT_S),
            "reset prefix cache",
        )

    async def start_profile(self, engine: str) -> list[Outcome]:
        """Record what the workers do."""
        request = admin_service_pb2.StartProfileRequest()
        return await self._each(engine, lambda e: self._admins[e].StartProfile(request), "start profile")

    async def stop_profile(self, engine: str) -> list[Outcome]:
        """Write the records; answers are StopProfileResponses."""
        request = admin_service_pb2.StopProfileRequest()
        return await self._each(engine, lambda e: self._admins[e].StopProfile(request), "stop profile")

    async def _each(
        self, engine: str, call: Callable[[str], Awaitable[Any]], operation: str = ""
    ) -> list[Outcome]:
        if engine and engine not in self._admins:
            raise UnknownRequest(
                engine, message=f"no engine {engine!r}; there are: {', '.join(self._admins)}"
            )
        chosen = (engine,) if engine else self.engines
        outcomes = await asyncio.gather(*(self._one(address, call) for address in chosen))
        if operation:
            failed = [outcome.engine for outcome in outcomes if outcome.error is not None]
            log.info("operation", operation=operation, engines=",".join(chosen), failed=",".join(failed))
        return outcomes

    async def _one(self, engine: str, call: Callable[[str], Awaitable[Any]]) -> Outcome:
        try:
            return Outcome(engine, await call(engine))
        except grpc.aio.AioRpcError as failure:
            return Outcome(engine, error=error_of(failure))
