"""The worker's gRPC side: Describe, LoadModel, AllocateBlocks and the fenced step stream, over any Executor.

Translation and fencing; what a step does is the executor's, when to load and allocate is lifecycle.py's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc

from quire.worker.v1 import lifecycle_pb2, step_pb2, worker_service_pb2_grpc
from quire_servicekit.errors import (
    FailedPrecondition,
    InvalidRequest,
    OutOfMemory,
    StaleEpoch,
    Unavailable,
    UnknownModel,
)
from quire_servicekit.logging import get_logger
from quire_worker import codec
from quire_worker.executor import Executor, LoadPhase, PoolTooLarge
from quire_worker.lifecycle import Lifecycle, WorkerState
from quire_worker.masks import MasksLost
from quire_worker.metrics import WorkerMetrics
from quire_worker.step import StepOutcome, StepPlan

log = get_logger("worker")


class Fenced(Exception):
    """A newer epoch took the worker over."""


class StepStream:
    """One Execute stream: hands plans to the executor as they come, sends outcomes as they are delivered."""

    def __init__(self, executor: Executor, context: Any, metrics: WorkerMetrics, vocab_size: int) -> None:
        self._executor = executor
        self._vocab_size = vocab_size
        self._context = context
        self._metrics = metrics
        self._outbox: deque[StepOutcome] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._num_running = 0
        # Masked slots of steps that are not answered yet, until their mask comes.
        self._unmasked: dict[int, set[int]] = {}
        self._is_read_out = False
        # Set once the slots are empty again: until then it owns the executor.
        self.closed = asyncio.Event()
        # Resolved with the exception that ends the stream early.
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """End the stream with `error`; the first one counts."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run(self) -> None:
        """Serve until the scheduler has closed its side and every step is answered, or raise what ended it."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            waiting: set[asyncio.Future[None]] = {reader, writer, self._failed}
            while writer in waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            # Nobody may be left waiting for it, and it must not complain about that.
            self._failed.cancel()

    async def _read(self) -> None:
        read, submit, deliver = self._context.read, self._executor.submit, self._deliver
        while (message := await read()) is not grpc.aio.EOF:
            kind = message.WhichOneof("message")
            if kind == "step":
                self._num_running += 1
                plan = codec.plan_from_message(message.step)
                if plan.masked_slots:
                    self._unmasked[plan.step_id] = _masked_slots(plan)
                submit(plan, deliver)
            elif kind == "mask":
                self._mask(message.mask)
            else:
                raise InvalidRequest("message", "`step` or `mask` after `open`", kind)
        self._is_read_out = True
        self._wake_writer()

    def _mask(self, message: step_pb2.SampleMask) -> None:
        slots = list(message.slots)
        missing = self._unmasked.get(message.step_id, set())
        if len(set(slots)) != len(slots) or not missing.issuperset(slots):
            raise InvalidRequest("mask.slots", f"masked slots of step {message.step_id}, each once", slots)
        try:
            mask = codec.mask_from_message(message, self._vocab_size)
        except ValueError as error:
            raise InvalidRequest("mask.bitmasks", message=f"malformed mask: {error}") from error
        missing.difference_update(slots)
        if not missing:
            del self._unmasked[message.step_id]
        self._executor.mask(mask)

    async def _write(self) -> None:
        outbox, write = self._outbox, self._context.write
        while not (self._is_read_out and not outbox and self._num_running == 0):
            if not outbox:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                continue
            outcome = outbox.popleft()
            await write(codec.outcome_to_message(outcome))
            self._metrics.step_done(outcome)

    def _deliver(self, outcome: StepOutcome | Exception) -> None:
        self._num_running -= 1
        if isinstance(outcome, ValueError):
            self.fail(InvalidRequest("step", message=f"malformed step: {outcome}"))
        elif isinstance(outcome, MasksLost):
            # Its stream has ended already.
            self.fail(outcome)
        elif isinstance(outcome, Exception):
            log.error("step failed", exc_info=outcome)
            self.fail(outcome)
        else:
            self._outbox.append(outcome)
            self._wake_writer()

    def _wake_writer(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class WorkerServicer(worker_service_pb2_grpc.WorkerServicer):
    """The contract's Worker service."""

    def __init__(
        self, executor: Executor, lifecycle: Lifecycle, metrics: WorkerMetrics | None = None
    ) -> None:
        self._executor = executor
        self._lifecycle = lifecycle
        self._metrics = metrics or WorkerMetrics()
        self._epoch = 0
        self._stream: StepStream | None = None
        # Empties the slots of the stream before; kept, since the loop holds tasks weakly.
        self._emptying: asyncio.Task[None] | None = None

    @property
    def has_stream(self) -> bool:
        """Whether a scheduler has taken the worker over."""
        return self._stream is not None

    async def end_stream(self) -> None:
        """End the step stream with UNAVAILABLE, so that the scheduler looks for a worker at once."""
        if (stream := self._stream) is not None:
            stream.fail(Unavailable("worker", message="the worker stops"))
            await stream.closed.wait()

    async def Describe(
        self, request: lifecycle_pb2.DescribeRequest, context: Any
    ) -> lifecycle_pb2.DescribeResponse:
        """See the contract."""
        lifecycle = self._lifecycle
        response = lifecycle_pb2.DescribeResponse(
            worker_id=lifecycle.worker_id,
            state=cast(lifecycle_pb2.WorkerState, int(lifecycle.state)),
            epoch=self._epoch,
            device=self._executor.device,
            rank=0,
            world_size=1,
            failure=lifecycle.failure,
        )
        if lifecycle.model is not None:
            response.model.CopyFrom(codec.model_to_message(lifecycle.model))
        if lifecycle.pool is not None:
            response.pool.CopyFrom(codec.pool_to_message(lifecycle.pool))
        return response

    async def LoadModel(
        self, request: lifecycle_pb2.LoadModelRequest, context: Any
    ) -> AsyncIterator[lifecycle_pb2.LoadModelResponse]:
        """See the contract."""
        source = codec.source_from_message(request)
        self._lifecycle.start_load(source)
        try:
            async for progress in self._lifecycle.progress():
                is_ready = progress.phase is LoadPhase.READY
                yield codec.progress_to_message(progress, self._lifecycle.model if is_ready else None)
        except FileNotFoundError as error:
            raise UnknownModel(request.path, message=str(error)) from error
        except ValueError as error:
            raise InvalidRequest("path", message=str(error)) from error

    async def AllocateBlocks(
        self, request: lifecycle_pb2.AllocateBlocksRequest, context: Any
    ) -> lifecycle_pb2.AllocateBlocksResponse:
        """See the contract."""
        try:
            pool = await self._lifecycle.allocate(codec.pool_request_from_message(request))
        except PoolTooLarge as error:
            raise OutOfMemory(0, 0, message=str(error)) from error
        except ValueError as error:
            raise InvalidRequest("sizes", message=str(error)) from error
        return lifecycle_pb2.AllocateBlocksResponse(pool=codec.pool_to_message(pool))

    async def Execute(self, request_iterator: Any, context: Any) -> None:
        """See the contract. Reads and writes through `context`: two tasks, no generator between."""
        epoch, scheduler_id = await self._read_open(context)
        # From here on an older scheduler is locked out, even before this one owns the executor.
        self._epoch = epoch
        while (older := self._stream) is not None:
            older.fail(Fenced())
            await older.closed.wait()
        if self._epoch != epoch:
            await _abort_fenced(context, epoch, self._epoch)
        model = self._lifecycle.model
        vocab_size = 0 if model is None else model.vocab_size
        stream = self._stream = StepStream(self._executor, context, self._metrics, vocab_size)
        log.info("scheduler connected", epoch=epoch, scheduler_id=scheduler_id)
        try:
            await context.write(step_pb2.ExecuteResponse(opened=step_pb2.Opened(epoch=epoch)))
            await stream.run()
        except Fenced:
            await _abort_fenced(context, epoch, self._epoch)
        finally:
            # A task of its own: the cancelling of a call whose client has gone must not interrupt it.
            self._emptying = asyncio.create_task(self._empty_slots(stream))
            await asyncio.shield(self._emptying)
            log.info("scheduler disconnected", epoch=epoch, scheduler_id=scheduler_id)

    async def _empty_slots(self, stream: StepStream) -> None:
        """The stream has ended: wait for its steps, forget its sequences, let the next one in."""
        try:
            await self._executor.reset()
        finally:
            self._stream = None
            stream.closed.set()

    async def _read_open(self, context: Any) -> tuple[int, str]:
        message = await context.read()
        if message is grpc.aio.EOF or message.WhichOneof("message") != "open":
            raise FailedPrecondition("the first message of Execute must be `open`")
        if self._lifecycle.state is not WorkerState.READY:
            raise FailedPrecondition(
                f"the worker is {self._lifecycle.state.name}, blocks must be allocated first"
            )
        if message.open.epoch <= self._epoch:
            raise StaleEpoch(message.open.epoch, self._epoch)
        return message.open.epoch, message.open.scheduler_id


def _masked_slots(plan: StepPlan) -> set[int]:
    slots = set(plan.masked_slots)
    if len(slots) != len(plan.masked_slots) or not slots.issubset(plan.slots):
        raise InvalidRequest("step.masked_slots", "slots of the step, each once", list(plan.masked_slots))
    return slots


async def _abort_fenced(context: Any, epoch: int, current: int) -> None:
    await context.abort(grpc.StatusCode.ABORTED, f"epoch {current} took this worker over from epoch {epoch}")
