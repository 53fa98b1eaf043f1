"""One gateway's Serve stream: its submits and aborts go to the engine, the engine's news come back as frames.

The stream is the owner of its requests: when it ends, they are aborted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from quire.scheduler.v1 import serve_pb2
from quire_scheduler.codec import FrameEncoder, load_to_message, request_from_submit
from quire_scheduler.errors import SchedulerError
from quire_scheduler.outbox import Outbox
from quire_scheduler.step import Deltas
from quire_scheduler.timing import PhaseTimes
from quire_servicekit.errors import FailedPrecondition, QueueFull, QuireError
from quire_servicekit.logging import get_logger

log = get_logger("gateways")

if TYPE_CHECKING:
    from quire_scheduler.engine import Engine

# How long a gateway may have an old load. Frames carry it, but blocks of an aborted request come back without a frame.
_LOAD_INTERVAL_S = 1.0


class GatewayStream:
    """A Serve stream after its `hello`."""

    def __init__(self, engine: Engine, context: Any, gateway_id: str, max_unread_tokens: int) -> None:
        self.gateway_id = gateway_id
        self._engine = engine
        self._context = context
        self._outbox = Outbox(max_unread_tokens)
        self._encoder = FrameEncoder()
        self._wake: asyncio.Future[None] | None = None
        # The load in the last frame.
        self._told_load = engine.load()
        # Set by whoever runs it, once its requests are aborted and its RPC is about to return.
        self.closed = asyncio.Event()
        # Resolved with the exception that ends the stream.
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: QuireError) -> None:
        """End the stream with `error`; the first one counts."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def deliver(self, step_id: int, sampled_at_unix_us: int, deltas: Deltas) -> None:
        """Take news of a step; never waits. The writer sends what is there whenever the gateway reads."""
        if not self._outbox.put(step_id, sampled_at_unix_us, deltas):
            self.end(QueueFull(message="the gateway leaves too many tokens unread, its stream is ended"))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self) -> None:
        """Serve until the gateway ends the stream; raises what is wrong with it."""
        tasks = [asyncio.create_task(part) for part in (self._read(), self._write(), self._tell_load())]
        try:
            done, _ = await asyncio.wait({*tasks, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._engine.abort_owner(self)
            # Nobody waits for it any more: it must not complain about that.
            self._ended.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        read, engine = self._context.read, self._engine
        while (message := await read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("message")
            if kind == "submit":
                self._submit(message.submit)
            elif kind == "abort":
                abort = message.abort
                index = abort.sequence_index if abort.HasField("sequence_index") else None
                engine.abort(self, abort.handle, index)
            else:
                raise FailedPrecondition(f"`submit` or `abort` after `hello`, got {kind}")

    def _submit(self, submit: serve_pb2.Submit) -> None:
        try:
            self._engine.submit(request_from_submit(submit, self, self._engine.now_s()))
        except SchedulerError as error:
            log.debug("request refused", request_id=submit.request_id, reason=str(error))
            self.deliver(self._engine.last_step_id, 0, Deltas(rejections=[(submit.handle, error)]))

    async def _write(self) -> None:
        outbox, encoder, write = self._outbox, self._encoder, self._context.write
        loop, engine, times, clock = (
            asyncio.get_running_loop(),
            self._engine,
            self._engine.times,
            PhaseTimes.now,
        )
        while True:
            if not outbox:
                self._wake = loop.create_future()
                await self._wake
                continue
            started_ns = clock()
            load = self._told_load = engine.load()
            message = encoder.encode(*outbox.take(), load_to_message(load))
            times.frame_encode_ns += clock() - started_ns
            times.num_frames += 1
            await write(message)

    async def _tell_load(self) -> None:
        """A frame without news whenever the load changed and no other frame said so."""
        while True:
            await asyncio.sleep(_LOAD_INTERVAL_S)
            if not self._outbox and self._engine.load() != self._told_load:
                self.deliver(self._engine.last_step_id, 0, Deltas())
