"""The Serve stream to one scheduler: connected again whenever it breaks.

One job: carry messages both ways and say when the stream begins and ends. Which request goes where is the pool's to
decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from quire.model.v1 import model_pb2
from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc, serve_pb2
from quire_gateway.active_request import ActiveRequest
from quire_gateway.bidi import BrokenStreamError, end, read, start_writer
from quire_gateway.models import ServedModel
from quire_gateway.wire import served_model, submit_message
from quire_servicekit.errors import FailedPrecondition
from quire_servicekit.logging import get_logger

log = get_logger("scheduler connection")

_BACKOFF_S = (0.02, 0.05, 0.1, 0.2, 0.5)
#: A scheduler that is connected but says nothing must at least be ready within this time.
_READY_TIMEOUT_S = 5.0


class Listener(Protocol):
    """Who is told of what happens on the stream; every call comes from the event loop."""

    def refusal_of(self, model: ServedModel) -> str | None:
        """Why an engine with this model cannot be used; None if it can."""

    def on_ready(self, connection: SchedulerConnection) -> None:
        """The scheduler takes requests."""

    def on_frame(self, connection: SchedulerConnection, frame: serve_pb2.StepFrame) -> None:
        """News of one step."""

    def on_lost(self, connection: SchedulerConnection, requests: list[ActiveRequest]) -> None:
        """The stream broke; these requests were under way on it."""


class SchedulerConnection:
    """One scheduler replica."""

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        hello: Callable[[], Awaitable[serve_pb2.Hello]],
        listener: Listener,
        *,
        vocabulary: str = "",
    ) -> None:
        """vocabulary: name of the engine's tokenizer, see ServedModel."""
        self.address, self._channel, self._hello, self._listener = address, channel, hello, listener
        self._vocabulary = vocabulary
        #: Requests under way on this stream, by handle.
        self.requests: dict[int, ActiveRequest] = {}
        #: What it serves, while it is connected.
        self.model: ServedModel | None = None
        self.model_info: model_pb2.ModelInfo | None = None
        self.block_size = 16
        self.load = load_pb2.Load()
        #: Sequences submitted here that have not ended.
        self.num_dispatched = 0
        self._next_handle = 1
        self._outgoing: list[serve_pb2.ServeRequest] = []
        self._has_outgoing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        """It takes requests now."""
        return self.model is not None

    def start(self) -> None:
        """Connect in the background and stay connected."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"scheduler {self.address}")

    async def close(self) -> None:
        """End the stream; the scheduler aborts what was under way on it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def submit(self, request: ActiveRequest) -> None:
        """Send a request; its news come by `on_frame`. Only while `is_ready`."""
        handle = self._next_handle
        while handle in self.requests:
            handle = handle % 0xFFFFFFFF + 1
        self._next_handle = handle % 0xFFFFFFFF + 1
        self.requests[handle] = request
        request.address, request.handle = self.address, handle
        request.num_on_engine = len(request.unfinished)
        self.num_dispatched += request.num_on_engine
        self._send(submit_message(request, handle, asyncio.get_running_loop().time()))

    def forget(self, request: ActiveRequest, *, abort: bool) -> None:
        """The request has ended for us; abort: the scheduler does not know that yet."""
        if self.requests.get(request.handle) is not request:
            return
        del self.requests[request.handle]
        self.num_dispatched -= request.num_on_engine
        request.num_on_engine = 0
        request.address = None
        if abort:
            self._send(serve_pb2.ServeRequest(abort=serve_pb2.Abort(handle=request.handle)))

    def stop_sequence(self, request: ActiveRequest, sequence_index: int) -> None:
        """One of the request's sequences has ended for us; the others go on."""
        if self.requests.get(request.handle) is not request:
            return
        self.num_dispatched -= 1
        request.num_on_engine -= 1
        abort = serve_pb2.Abort(handle=request.handle, sequence_index=sequence_index)
        self._send(serve_pb2.ServeRequest(abort=abort))
        if not request.unfinished:
            self.forget(request, abort=False)

    def _send(self, message: serve_pb2.ServeRequest) -> None:
        self._outgoing.append(message)
        self._has_outgoing.set()

    async def _run(self) -> None:
        num_failures = 0
        last_reason = ""
        while True:
            try:
                await self._serve()
            except grpc.aio.AioRpcError as failure:
                reason = f"{failure.code().name}: {failure.details()}"
            except BrokenStreamError as broken:
                reason = str(broken)
            except FailedPrecondition as mismatch:
                reason = mismatch.message
            except TimeoutError:
                reason = f"no ready message within {_READY_TIMEOUT_S:g} s"
            except Exception:
                # A bug, here or there: the stream is of no use, but its requests and the next stream are.
                log.exception("scheduler stream failed", address=self.address)
                reason = "internal error"
            finally:
                was_ready = self._lose()
            num_failures = 1 if was_ready else num_failures + 1
            if was_ready or reason != last_reason:
                log.warning("scheduler not connected", address=self.address, reason=reason)
            last_reason = reason
            await asyncio.sleep(_BACKOFF_S[min(num_failures, len(_BACKOFF_S)) - 1])

    async def _serve(self) -> None:
        """One stream, until it breaks: raises AioRpcError, BrokenStreamError, TimeoutError or FailedPrecondition."""
        hello = await self._hello()
        call: Any = scheduler_service_pb2_grpc.SchedulerStub(self._channel).Serve()
        writer: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await call.write(serve_pb2.ServeRequest(hello=hello))
                first = await read(call)
            self._become_ready(first.ready)
            writer = start_writer(call, self._write(call), "scheduler writer")
            self._listener.on_ready(self)
            while True:
                frame = (await read(call)).step_frame
                self.load = frame.load
                self._listener.on_frame(self, frame)
        finally:
            await end(call, writer)

    async def _write(self, call: Any) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            messages, self._outgoing = self._outgoing, []
            for message in messages:
                await call.write(message)

    def _become_ready(self, ready: serve_pb2.Ready) -> None:
        model = served_model(ready.model, ready.max_model_len, self._vocabulary)
        refusal = self._listener.refusal_of(model)
        if refusal is not None:
            raise FailedPrecondition(refusal)
        self.model, self.model_info = model, ready.model
        self.block_size = ready.block_size or 16
        self.load = ready.load
        log.info(
            "scheduler connected", address=self.address, scheduler_id=ready.scheduler_id, model=ready.model.id
        )

    def _lose(self) -> bool:
        """Forget the stream's state and report its requests; whether it had been ready."""
        was_ready = self.is_ready
        requests = list(self.requests.values())
        self.model = self.model_info = None
        self.requests.clear()
        self._outgoing.clear()
        self.num_dispatched = 0
        for request in requests:
            request.address, request.num_on_engine = None, 0
        self._listener.on_lost(self, requests)
        return was_ready
