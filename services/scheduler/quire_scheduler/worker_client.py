"""The scheduler's side of the worker contract: from a silent address to an open step stream.

Owns connecting and the stream; what goes through it is the driver's. Every way in which a worker can fail arrives as
WorkerLost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc

from quire.model.v1 import model_pb2
from quire.worker.v1 import lifecycle_pb2, step_pb2, worker_service_pb2_grpc
from quire_scheduler.codec import PlanEncoder
from quire_scheduler.step import StepPlan
from quire_servicekit.errors import WorkerLost
from quire_servicekit.logging import get_logger

log = get_logger("worker_client")

# A worker that is there answers these at once; loading and allocating have no limit of their own.
ANSWER_TIMEOUT_S = 10.0
PROGRESS_LOG_INTERVAL_S = 2.0


class TakenOver(WorkerLost):
    """Another scheduler has opened the step stream with a higher epoch."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What the scheduler asks for; 0 leaves it to the worker."""

    block_size: int = 16
    max_num_seqs: int = 0
    max_tokens_per_step: int = 0
    max_model_len: int = 0
    num_blocks: int = 0


class WorkerSession:
    """An open step stream. `read` and `write` may run beside each other, each by one task."""

    def __init__(
        self, call: Any, model: model_pb2.ModelInfo, pool: lifecycle_pb2.PoolInfo, epoch: int
    ) -> None:
        self.model = model
        self.pool = pool
        self.epoch = epoch
        self._call = call
        self._encoder = PlanEncoder()

    def encode(self, plan: StepPlan) -> step_pb2.ExecuteRequest:
        """The plan as a message, valid until the next call: write it before."""
        return self._encoder.encode(plan)

    async def write(self, message: step_pb2.ExecuteRequest) -> None:
        """Send a step. Raises WorkerLost."""
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._lost(error) from error

    async def read(self) -> step_pb2.StepResult:
        """The next result; the message is the caller's. Raises WorkerLost."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise await self._lost(error) from error
        if message is grpc.aio.EOF:
            raise await self._lost(None)
        result: step_pb2.StepResult = message.result
        return result

    def close(self) -> None:
        """End the stream; the worker empties its slots."""
        self._call.cancel()

    async def _lost(self, error: Exception | None) -> WorkerLost:
        if error is not None and not self._call.done():
            return WorkerLost(message=f"worker lost: {error}")
        # The call's own end says more than the operation that failed because of it.
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.ABORTED:
            return TakenOver(message=details)
        return WorkerLost(message=f"worker lost: {code.name}: {details or 'the step stream ended'}")


async def open_session(
    channel: grpc.aio.Channel, sizes: PoolSizes, scheduler_id: str, last_epoch: int
) -> WorkerSession:
    """Wait for the worker's model, have its blocks allocated and take it over. Raises WorkerLost."""
    stub = worker_service_pb2_grpc.WorkerStub(channel)
    try:
        described = await stub.Describe(lifecycle_pb2.DescribeRequest(), timeout=ANSWER_TIMEOUT_S)
        if described.state == lifecycle_pb2.WORKER_STATE_FAILED:
            raise WorkerLost(message=f"the worker could not load its model: {described.failure}")
        model = described.model if described.HasField("model") else await _join_load(stub)
        request = lifecycle_pb2.AllocateBlocksRequest(
            block_size=sizes.block_size,
            max_num_seqs=sizes.max_num_seqs,
            max_tokens_per_step=sizes.max_tokens_per_step,
            max_model_len=sizes.max_model_len,
            num_blocks=sizes.num_blocks,
        )
        pool = (await stub.AllocateBlocks(request)).pool
        epoch = max(described.epoch, last_epoch) + 1
        call = stub.Execute()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await call.write(
                step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=epoch, scheduler_id=scheduler_id))
            )
            opened = await call.read()
        if opened is grpc.aio.EOF:
            raise WorkerLost(message=f"the worker refused the step stream: {await call.details()}")
    except grpc.aio.AioRpcError as error:
        raise WorkerLost(message=f"worker: {error.code().name}: {error.details()}") from error
    except TimeoutError as error:
        raise WorkerLost(
            message=f"the worker did not open the step stream within {ANSWER_TIMEOUT_S:g} s"
        ) from error
    return WorkerSession(call, model, pool, epoch)


async def _join_load(stub: Any) -> model_pb2.ModelInfo:
    """Follow the load that the worker has under way to its end, and tell of its progress now and then."""
    loop = asyncio.get_running_loop()
    told_s, told_phase = loop.time(), lifecycle_pb2.LOAD_PHASE_UNSPECIFIED
    async for progress in stub.LoadModel(lifecycle_pb2.LoadModelRequest()):
        if progress.phase == lifecycle_pb2.LOAD_PHASE_READY:
            model: model_pb2.ModelInfo = progress.model
            return model
        if progress.phase != told_phase or loop.time() - told_s >= PROGRESS_LOG_INTERVAL_S:
            told_s, told_phase = loop.time(), progress.phase
            phase = lifecycle_pb2.LoadPhase.Name(progress.phase)
            log.info("worker is loading", phase=phase, done=progress.done, total=progress.total)
    raise WorkerLost(message="the worker's load ended without a model")
