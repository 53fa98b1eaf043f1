"""A worker's way from empty to ready: one load, joined by whoever asks, then one pool.

Owns the state machine; knows nothing of gRPC, and of the executor only that loading and allocating block.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from enum import IntEnum

from quire_servicekit.errors import FailedPrecondition
from quire_worker.executor import (
    Executor,
    LoadPhase,
    LoadProgress,
    ModelDescription,
    ModelSource,
    PoolDescription,
    PoolRequest,
)


class WorkerState(IntEnum):
    """What a worker is doing; the numbers are those of the contract's enum."""

    EMPTY = 1
    LOADING = 2
    LOADED = 3
    READY = 4
    FAILED = 5


_TRANSITIONS = {
    WorkerState.EMPTY: {WorkerState.LOADING},
    WorkerState.LOADING: {WorkerState.LOADED, WorkerState.FAILED},
    WorkerState.LOADED: {WorkerState.READY},
    # Asleep.
    WorkerState.READY: {WorkerState.EMPTY},
    # Another try with another path.
    WorkerState.FAILED: {WorkerState.LOADING},
}


class Lifecycle:
    """The state of one worker. All methods run on one event loop."""

    def __init__(self, executor: Executor, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called after every change of `state`."""
        self.worker_id = secrets.token_hex(8)
        self.state = WorkerState.EMPTY
        self.failure = ""
        self.model: ModelDescription | None = None
        self.pool: PoolDescription | None = None
        self._executor = executor
        self._on_change = on_change
        self._source: ModelSource | None = None
        # What it had before it fell asleep.
        self._slept_source: ModelSource | None = None
        self._load_error: Exception | None = None
        self._loading: asyncio.Task[None] | None = None
        self._progress = LoadProgress(LoadPhase.QUEUED)
        self._progressed = asyncio.Event()
        self._pool_request: PoolRequest | None = None
        self._allocating = asyncio.Lock()

    @property
    def is_asleep(self) -> bool:
        """Its model and pool were given back until `wake`."""
        return self._slept_source is not None

    def check_may_sleep(self) -> None:
        """Raise FailedPrecondition unless it is ready, or asleep already."""
        if self.state is not WorkerState.READY and not self.is_asleep:
            raise FailedPrecondition(f"the worker is {self.state.name}: only a ready one can sleep")

    async def sleep(self) -> None:
        """Give model and pool back; the slots must be empty. Idempotent. FailedPrecondition: it is not ready."""
        self.check_may_sleep()
        async with self._allocating:
            if self.state is not WorkerState.READY:
                return
            self._slept_source, self._source = self._source, None
            self.model = self.pool = self._pool_request = None
            self._move_to(WorkerState.EMPTY)
            await asyncio.to_thread(self._executor.unload)

    def wake(self) -> None:
        """Begin to load what it had. Without effect on one that is awake."""
        if self._slept_source is not None:
            source, self._slept_source = self._slept_source, None
            self.start_load(source)

    def start_load(self, source: ModelSource | None) -> None:
        """Begin to load, or join: None joins whatever load there is. FailedPrecondition for another model."""
        if source is None:
            if self.is_asleep:
                raise FailedPrecondition("the worker is asleep")
            if self.state is WorkerState.EMPTY:
                raise FailedPrecondition("no load to join: the worker has no model, name one by its path")
            return
        if self.state in (WorkerState.EMPTY, WorkerState.FAILED):
            self._slept_source = None
            self._source, self._load_error, self.failure = source, None, ""
            self._progress = LoadProgress(LoadPhase.QUEUED)
            self._move_to(WorkerState.LOADING)
            self._loading = asyncio.create_task(self._load(source))
        elif self._source is None or source.path != self._source.path:
            raise FailedPrecondition(
                f"this worker has {self._source.path if self._source else 'another model'}"
            )

    async def progress(self) -> AsyncIterator[LoadProgress]:
        """Reports of the load until it is over, the newest only if the reader is slow; ends with phase READY.

        Raises what the executor's `load` raised if the load failed.
        """
        sent: LoadProgress | None = None
        while self.state is WorkerState.LOADING:
            event = self._progressed
            if self._progress != sent:
                sent = self._progress
                yield sent
                continue
            await event.wait()
        if self._load_error is not None:
            raise self._load_error
        yield LoadProgress(LoadPhase.READY)

    async def allocate(self, request: PoolRequest) -> PoolDescription:
        """Allocate the pool, or answer it again for the same sizes. FailedPrecondition: no model, or other sizes."""
        async with self._allocating:
            if self.pool is not None:
                if request not in (self._pool_request, PoolRequest()) and not _matches(request, self.pool):
                    raise FailedPrecondition(
                        f"the pool is allocated already: {self.pool}; asked for {request}"
                    )
                return self.pool
            if self.state is not WorkerState.LOADED:
                raise FailedPrecondition(
                    f"the worker is {self.state.name}, blocks are allocated after the load"
                )
            pool = await asyncio.to_thread(self._executor.allocate, request)
            self._pool_request, self.pool = request, pool
            self._move_to(WorkerState.READY)
            return pool

    async def close(self) -> None:
        """Stop waiting for a load; the thread that loads ends with the process."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _load(self, source: ModelSource) -> None:
        loop = asyncio.get_running_loop()

        def report(progress: LoadProgress) -> None:
            loop.call_soon_threadsafe(self._report, progress)

        try:
            self.model = await asyncio.to_thread(self._executor.load, source, report)
        except Exception as error:  # noqa: BLE001 - kept as the state's failure and raised to whoever joins
            self._load_error, self.failure = error, f"{type(error).__name__}: {error}"
            self._move_to(WorkerState.FAILED)
        else:
            self._move_to(WorkerState.LOADED)

    def _report(self, progress: LoadProgress) -> None:
        self._progress = progress
        self._wake()

    def _move_to(self, state: WorkerState) -> None:
        assert state in _TRANSITIONS[self.state], f"{self.state.name} -> {state.name}"
        self.state = state
        self._wake()
        self._on_change()

    def _wake(self) -> None:
        self._progressed.set()
        self._progressed = asyncio.Event()


def _matches(request: PoolRequest, pool: PoolDescription) -> bool:
    """Whether every size asked for by number is the pool's."""
    names = ("block_size", "max_num_seqs", "max_tokens_per_step", "max_model_len", "num_blocks")
    return all(getattr(request, name) in (0, getattr(pool, name)) for name in names)
