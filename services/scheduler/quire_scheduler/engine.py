"""Drives one scheduler core against one worker: connects, keeps steps in flight, hands news to their owners.

All on one event loop. Decides nothing about requests (that is the core's) and knows no gateway stream (an owner is
whatever has a `deliver`). When the worker is lost every sequence waits, and goes on with the next one.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import grpc

from quire.model.v1 import model_pb2
from quire_scheduler import codec
from quire_scheduler.block_event_feed import BlockEventFeed
from quire_scheduler.constrained_requests import ConstrainedRequests, FetchVocabulary
from quire_scheduler.errors import UnexpectedResult
from quire_scheduler.load_log import LoadLog
from quire_scheduler.metrics import RequestHistograms
from quire_scheduler.request import Request
from quire_scheduler.request_spans import traced
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.settings import SchedulerSettings
from quire_scheduler.sleeping import SleepGate
from quire_scheduler.stats import Load
from quire_scheduler.step import Deltas
from quire_scheduler.timers import ForwardProgress, Timer
from quire_scheduler.timing import PhaseTimes
from quire_scheduler.worker_client import PoolSizes, TakenOver, WorkerSession, open_session
from quire_servicekit.errors import FingerprintMismatch, QuireError, Unavailable, WorkerLost
from quire_servicekit.logging import get_logger

log = get_logger("engine")


class Owner(Protocol):
    """Whoever submits requests and takes their news."""

    def deliver(self, step_id: int, sampled_at_unix_us: int, deltas: Deltas) -> None:
        """Take the news; must not block or raise."""
        ...

    def __hash__(self) -> int:
        """Owners are told apart by identity."""
        ...


class Engine:
    """One engine replica: the core, and the worker it has at the moment."""

    def __init__(
        self,
        settings: SchedulerSettings,
        channel: grpc.aio.Channel,
        on_ready_change: Callable[[bool], None] = lambda ready: None,
        fetch_vocabulary: FetchVocabulary | None = None,
    ) -> None:
        """`on_ready_change` is told whenever the engine becomes able or unable to serve. `fetch_vocabulary`: the
        tokenizer's, without which constraints are refused. Needs a running loop."""
        self.scheduler_id = secrets.token_hex(8)
        self.times = PhaseTimes()
        self.histograms = RequestHistograms()
        self.core: SchedulerCore | None = None
        self.model = model_pb2.ModelInfo()
        self.feed: BlockEventFeed | None = None
        self.num_gateways = 0
        self.last_step_id = 0
        self.is_paused = False
        self._is_draining = False
        # Seconds of a monotonic clock; deadlines are on it.
        self.now_s = time.monotonic
        self.constrained = ConstrainedRequests(
            settings.compiler_limits(), fetch_vocabulary, self._after_change, lambda: self.now_s()
        )
        self._settings = settings
        self._channel = channel
        self._on_ready_change = on_ready_change
        self._was_ready = False
        self._session: WorkerSession | None = None
        self._sizes = settings.pool_sizes()
        self._last_epoch = 0
        self._wake: asyncio.Future[None] | None = None
        # When each step in flight was sent; when the last result came.
        self._sent_s: deque[float] = deque()
        self._result_s = 0.0
        self._load_log = LoadLog(settings.log_interval_s)
        self._deadline_timer = Timer(self._expire)
        self._progress = ForwardProgress(
            settings.stall_timeout_s, self._is_expecting_steps, self._publish_ready
        )
        self._idle: asyncio.Future[None] | None = None
        self.gate = SleepGate(channel)

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether steps can run now and new requests are taken."""
        return (
            self._session is not None
            and not self.is_paused
            and not self._progress.is_stalled
            and not self.is_draining
        )

    @property
    def is_connected(self) -> bool:
        """Whether a worker takes steps."""
        return self._session is not None

    @property
    def is_stalled(self) -> bool:
        """Whether sequences run but no step has ended for too long."""
        return self._progress.is_stalled

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._is_draining

    @property
    def num_requests(self) -> int:
        """Unfinished requests."""
        return 0 if self.core is None else self.core.num_requests

    def load(self) -> Load:
        """The load now; all zeros before the first worker."""
        return Load(0, 0, 0, 0, 0, 0, 0, 0.0) if self.core is None else self.core.load(self.now_s())

    def require_core(self) -> SchedulerCore:
        """The core. Raises Unavailable before the first worker was there: nothing is known of the model."""
        if self.core is None:
            raise Unavailable("worker", message="the scheduler has not reached its worker yet")
        return self.core

    # Requests.

    def submit(self, request: Request) -> None:
        """Accept a request; raises what the core raises."""
        core = self.require_core()
        if request.sampling.is_masked:
            self.constrained.submit(core, request)
        else:
            core.submit(request, self.now_s())
        if request.deadline_s is not None:
            self._deadline_timer.set(core.next_deadline_s())
        self._after_change()

    def abort(self, owner: Owner, handle: int, sequence_index: int | None = None) -> None:
        """End a request, or one sequence of it, if it is known."""
        if self.core is not None and self.core.abort(owner, handle, self.now_s(), sequence_index):
            self._after_change()

    def abort_owner(self, owner: Owner) -> None:
        """End all requests of an owner that has gone."""
        if self.core is not None and self.core.abort_owner(owner, self.now_s()):
            self._after_change()

    # Operation.

    def pause(self) -> None:
        """Plan no further steps."""
        self.is_paused = True
        self._publish_ready()

    def resume(self) -> None:
        """Undo `pause` and `drain`."""
        self.is_paused = self._is_draining = False
        if self.core is not None:
            self.core.is_draining = False
        self._progress.note()
        self._publish_ready()
        self._after_change()

    async def drain(self) -> None:
        """Take no new requests; return when those accepted have ended. Cancelling the wait undoes nothing."""
        self._is_draining = True
        if self.core is not None:
            self.core.begin_drain()
        self._publish_ready()
        while self._is_draining and self.num_requests:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Stop the timers."""
        self._deadline_timer.cancel()
        self._progress.close()

    async def run(self) -> None:
        """Connect, drive, and connect again, until cancelled."""
        told = ""
        while True:
            await self.gate.wait_open()
            try:
                session = await open_session(self._channel, self._sizes, self.scheduler_id, self._last_epoch)
            except WorkerLost as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("waiting for the worker", worker=self._settings.worker, reason=told)
                await asyncio.sleep(self._settings.reconnect_delay_s)
                continue
            told = ""
            delay_s = self._settings.reconnect_delay_s
            try:
                self._attach(session)
                await self._drive(session)
            except TakenOver as error:
                # Two schedulers that took it from each other in turn would both serve nothing.
                delay_s = self._settings.takeover_delay_s
                log.error("another scheduler has the worker", reason=str(error), retry_s=delay_s)
            except QuireError as error:
                log.warning("worker gone", reason=str(error), num_requests=self.num_requests)
            except UnexpectedResult:
                log.exception("the worker answered what nobody asked")
            finally:
                session.close()
                self._detach()
            await asyncio.sleep(delay_s)

    # The connection.

    def _attach(self, session: WorkerSession) -> None:
        self._last_epoch = session.epoch
        if self.core is None:
            self._make_core(session)
        elif session.model.fingerprint != self.model.fingerprint:
            raise FingerprintMismatch("the worker's model", self.model.fingerprint, session.model.fingerprint)
        assert self.core is not None
        self.core.worker_ready(session.pool.num_blocks)
        self._session = session
        self.gate.note_connected(True)
        self._progress.note()
        log.info(
            "worker connected",
            model=session.model.id,
            epoch=session.epoch,
            num_blocks=session.pool.num_blocks - 1,
            block_size=session.pool.block_size,
            max_num_seqs=session.pool.max_num_seqs,
            max_model_len=self.core.max_total_tokens,
            num_requests=self.num_requests,
        )
        self._publish_ready()
        self._after_change()

    def _make_core(self, session: WorkerSession) -> None:
        pool = session.pool
        config = self._settings.scheduler_config(
            block_size=pool.block_size,
            max_num_seqs=pool.max_num_seqs,
            max_tokens=pool.max_tokens_per_step,
            max_model_len=pool.max_model_len,
            # A pool of the null block alone: the model keeps no keys and values.
            has_blocks=pool.num_blocks > 1,
        )
        self.core = SchedulerCore(config, traced(self.histograms, self._settings.otlp_endpoint))
        if self._is_draining:
            self.core.begin_drain()
        self.feed = BlockEventFeed(self.core.events, self.core.prefix_snapshot)
        self.model = session.model
        self.constrained.attach(self.core, self.model.vocab_size, list(self.model.eos_token_ids))
        # A restarted worker must have tables of the same shape; how many blocks it has may differ.
        self._sizes = PoolSizes(
            block_size=pool.block_size,
            max_num_seqs=pool.max_num_seqs,
            max_tokens_per_step=pool.max_tokens_per_step,
            max_model_len=pool.max_model_len,
            num_blocks=self._settings.num_blocks,
        )

    def _detach(self) -> None:
        self._session = None
        self.gate.note_connected(False)
        self._sent_s.clear()
        self.constrained.worker_lost()
        if self.core is not None:
            self.core.worker_lost()
        self._publish_ready()

    async def _drive(self, session: WorkerSession) -> None:
        """Until the worker is lost; raises WorkerLost or UnexpectedResult."""
        tasks = {
            asyncio.create_task(self._apply_results(session)),
            asyncio.create_task(self._send_plans(session)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Steps.

    async def _apply_results(self, session: WorkerSession) -> None:
        """Each result: into the core, its news to the owners, then the planner's turn: tokens first."""
        core, times, clock = self.core, self.times, PhaseTimes.now
        assert core is not None
        while True:
            message = await session.read()
            started_ns = clock()
            result = codec.result_from_message(message)
            decoded_ns = clock()
            now_s = self.now_s()
            news = core.apply(result, now_s)
            times.result_decode_ns += decoded_ns - started_ns
            times.apply_ns += clock() - decoded_ns
            times.mask_wait_us += result.mask_wait_us
            self.constrained.applied(result.step_id)
            self.last_step_id = result.step_id
            for owner, deltas in news.items():
                cast(Owner, owner).deliver(result.step_id, result.sampled_at_unix_us, deltas)
            self._after_step(now_s)
            self._after_change()

    async def _send_plans(self, session: WorkerSession) -> None:
        core, times, clock = self.core, self.times, PhaseTimes.now
        assert core is not None
        loop = asyncio.get_running_loop()
        constrained, masks = self.constrained, self.constrained.outbox
        while True:
            while masks:
                await session.write(codec.mask_to_message(masks.popleft()))
            started_ns = clock()
            plan = None if self.is_paused else core.plan(self.now_s())
            planned_ns = clock()
            times.plan_ns += planned_ns - started_ns
            if plan is None:
                self._deliver_news()
                self._wake = loop.create_future()
                await self._wake
                continue
            message = session.encode(plan)
            times.plan_encode_ns += clock() - planned_ns
            times.num_plans += 1
            self._sent_s.append(self.now_s())
            if plan.masked:
                constrained.planned(core, plan)
            await session.write(message)

    def _after_step(self, now_s: float) -> None:
        core = self.core
        assert core is not None
        # A step runs from its being sent, or from the end of the one before it.
        self.histograms.step_time.add(now_s - max(self._sent_s.popleft(), self._result_s))
        self._result_s = now_s
        self._progress.note()
        if self._load_log.is_due(now_s, core.stats):
            self._load_log.write(now_s, core.load(now_s), core.stats)

    def _after_change(self) -> None:
        """Something may be plannable, or over."""
        core = self.core
        if core is None:
            return
        self._deliver_news()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        if core.num_requests:
            self._progress.watch()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _deliver_news(self) -> None:
        """Ends that no step brought go out at once."""
        assert self.core is not None
        for owner, deltas in self.core.take_news().items():
            cast(Owner, owner).deliver(self.last_step_id, 0, deltas)

    # Time.

    def _expire(self) -> None:
        assert self.core is not None
        if num_expired := self.core.expire(self.now_s()):
            log.info("deadlines passed", num_requests=num_expired)
        self._deadline_timer.set(self.core.next_deadline_s())
        self._after_change()

    def _is_expecting_steps(self) -> bool:
        return self._session is not None and not self.is_paused and self.num_requests > 0

    def _publish_ready(self) -> None:
        if self.is_ready != self._was_ready:
            self._was_ready = self.is_ready
            self._on_ready_change(self._was_ready)
