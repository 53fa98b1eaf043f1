"""The scheduler's domain behind one facade: submit, abort, plan, apply. No I/O, no clock of its own, one thread.

Times are seconds of a monotonic clock that the caller reads. The caller sends each plan to the worker in order, applies
each result in order, and hands each owner its deltas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.emission import (
    Ended,
    add_row,
    check_result,
    emit_by_owner,
    emit_pooled,
    emit_prompt_logprobs,
    emit_undisturbed,
    end_of,
)
from quire_scheduler.engine_state import EngineState
from quire_scheduler.errors import Draining, InvalidRequest, QueueFull, SchedulerError, UnexpectedResult
from quire_scheduler.events import BlockEvent, BlockEvents, BlockStored
from quire_scheduler.policies import make_policy
from quire_scheduler.queue import WaitingQueue
from quire_scheduler.registry import Registry
from quire_scheduler.request import FinishReason, Masker, Request, Sequence, SequenceStatus
from quire_scheduler.stats import IgnoringObserver, LifecycleObserver, Load, SchedulerStats
from quire_scheduler.step import Deltas, StepPlan, StepResult
from quire_scheduler.validation import validate


class SchedulerCore:
    """One engine's scheduler. It begins without a worker: requests wait until `worker_ready`.

    `max_total_tokens` (read it for what is advertised) is the longest prompt plus output: the context's or the
    pool's limit.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        observer: LifecycleObserver | None = None,
        event_sink: Callable[[BlockEvent], None] | None = None,
        first_event_epoch: int = 1,
    ) -> None:
        """`first_event_epoch` must rise from process to process, or subscribers mistake the new index for the old."""
        self.config = config
        self.stats = SchedulerStats()
        self.events = BlockEvents(event_sink, first_event_epoch)
        self.is_draining = False
        self._observer = observer or IgnoringObserver()
        self._queue = WaitingQueue(
            make_policy(config.policy), config.max_waiting_sequences, config.max_waiting_tokens
        )
        self._registry = Registry()
        self._engine: EngineState | None = None
        self._in_flight: deque[StepPlan] = deque()
        self._next_step_id = 1
        self._num_arrivals = 0
        # Ends that no step brought (deadline, failure), until someone takes them.
        self._news: dict[Hashable, Deltas] = {}

    # State.

    @property
    def has_worker(self) -> bool:
        """Whether steps can be planned."""
        return self._engine is not None

    @property
    def num_requests(self) -> int:
        """Accepted requests that have not ended."""
        return len(self._registry)

    @property
    def is_drained(self) -> bool:
        """Draining, and nothing is left."""
        return self.is_draining and not self._registry and not self._in_flight

    @property
    def num_steps_in_flight(self) -> int:
        """Plans whose results are not applied yet."""
        return len(self._in_flight)

    @property
    def num_running(self) -> int:
        """Sequences that have a slot."""
        return len(self._engine.running) if self._engine else 0

    @property
    def max_total_tokens(self) -> int:
        """Longest prompt plus output, tokens."""
        if self._engine is None:
            return self.config.max_model_len
        return min(self.config.max_model_len, self._engine.capacity_tokens)

    def next_deadline_s(self) -> float | None:
        """When `expire` has something to do next."""
        return self._registry.next_deadline_s()

    def load(self, now_s: float) -> Load:
        """The engine's load now."""
        oldest_s = self._queue.oldest_arrival_s()
        engine = self._engine
        num_total = engine.pool.num_total if engine else 0
        num_free = engine.pool.num_free if engine else 0
        return Load(
            num_waiting=len(self._queue),
            num_running=self.num_running,
            num_waiting_tokens=self._queue.num_tokens,
            num_total_blocks=num_total,
            num_free_blocks=num_free,
            num_used_blocks=num_total - num_free,
            num_cached_blocks=engine.index.num_cached_blocks if engine else 0,
            oldest_wait_s=0.0 if oldest_s is None else max(0.0, now_s - oldest_s),
        )

    def prefix_snapshot(self) -> list[BlockStored]:
        """Every indexed block, as of `events.epoch` and `events.number`."""
        return self._engine.index.snapshot() if self._engine else []

    def begin_drain(self) -> None:
        """From now on `submit` raises Draining; what was accepted goes on. Idempotent."""
        self.is_draining = True

    def reset_prefix_cache(self) -> tuple[int, int]:
        """Forgets cached blocks that nobody holds; answers (forgotten, cached ones that stay since they are in use)."""
        if self._engine is None:
            return 0, 0
        num_forgotten = self._engine.pool.forget_free()
        return num_forgotten, self._engine.index.num_cached_blocks

    # Requests.

    def submit(self, request: Request, now_s: float) -> None:
        """Accepts a request or raises: InvalidRequest (can never run), QueueFull, Draining. Nothing is kept then.

        A resumed sequence that its output has already ended ends at once, without a new token (see `take_news`).
        """
        if self.is_draining:
            raise Draining
        if self._registry.get(request.owner, request.handle) is not None:
            raise InvalidRequest("handle", "unique among the owner's unfinished requests", request.handle)
        validate(request, self.max_total_tokens, has_blocks=self.config.has_blocks)
        try:
            self._queue.check_room(len(request.resumed) or request.n, len(request.prompt_token_ids))
        except QueueFull:
            self.stats.num_refused_requests += 1
            raise
        self._num_arrivals += 1
        request.arrival_order = self._num_arrivals
        request.arrival_s = now_s
        outputs = request.resumed or {index: [] for index in range(request.n)}
        request.sequences = [
            Sequence(request, index, list(outputs[index]), self.max_total_tokens) for index in sorted(outputs)
        ]
        request.num_unfinished = len(request.sequences)
        self._registry.add(request)
        for sequence in request.sequences:
            reason = end_of(sequence)
            self._queue.hold(sequence)
            if reason is not None:
                self._end(sequence, reason, now_s)
                add_row(self._news_of(request.owner), sequence, None, reason)
            elif request.fork_source is None and not request.awaits_grammar:
                request.fork_source = sequence
                self._queue.release(sequence)

    def start(self, request: Request, maskers: Mapping[int, Masker]) -> None:
        """What a request's constraint needs is there: it waits in order from now on. maskers: by sequence index.

        Without effect on a request that has ended meanwhile.
        """
        request.awaits_grammar = False
        for sequence in request.sequences:
            sequence.masker = maskers.get(sequence.index)
            if request.fork_source is None and sequence.status is SequenceStatus.HELD:
                request.fork_source = sequence
                self._queue.release(sequence)

    def fail(self, request: Request, error: SchedulerError, now_s: float) -> None:
        """Ends a request with an error, in whatever state it is. Without effect on one that has ended."""
        if request.num_unfinished:
            self._fail(request, error, now_s)

    def abort(self, owner: Hashable, handle: int, now_s: float, sequence_index: int | None = None) -> bool:
        """Ends a request, or one sequence of it, in whatever state it is; nothing more is emitted for it.

        False: unknown or ended already, which is no error.
        """
        request = self._registry.get(owner, handle)
        if request is None:
            return False
        if sequence_index is None:
            self._end_request(request, FinishReason.ABORT, now_s)
            return True
        for sequence in request.sequences:
            if sequence.index == sequence_index and sequence.status is not SequenceStatus.FINISHED:
                self._end(sequence, FinishReason.ABORT, now_s)
                self._promote_sibling(request)
                return True
        return False

    def abort_owner(self, owner: Hashable, now_s: float) -> int:
        """Ends all requests of an owner that went away; answers how many."""
        requests = self._registry.of_owner(owner)
        for request in requests:
            self._end_request(request, FinishReason.ABORT, now_s)
        self._news.pop(owner, None)
        return len(requests)

    def expire(self, now_s: float) -> int:
        """Ends requests whose deadline has passed, in whatever state they are; answers how many."""
        expired = self._registry.pop_expired(now_s)
        for request in expired:
            news = self._news_of(request.owner)
            for sequence in request.sequences:
                if sequence.status is not SequenceStatus.FINISHED:
                    add_row(news, sequence, None, FinishReason.DEADLINE)
            self._end_request(request, FinishReason.DEADLINE, now_s)
        return len(expired)

    def take_news(self) -> dict[Hashable, Deltas]:
        """Ends that no step brought, per owner. `apply` includes them; call this after anything else that may end a
        request (`submit`, `expire`, `plan`) so that they don't wait for a step."""
        news, self._news = self._news, {}
        return news

    # Steps.

    def plan(self, now_s: float) -> StepPlan | None:
        """The next step; None when nothing can run now, or enough steps are in flight: ask again after another call."""
        engine = self._engine
        if engine is None:
            return None
        while len(self._in_flight) < self.config.max_steps_in_flight:
            plan, misfits = engine.planner.plan(self._next_step_id, now_s)
            for sequence in misfits:
                limit = f"at most {engine.capacity_tokens} (the block pool's size)"
                self._fail(sequence.request, InvalidRequest("num_tokens", limit, sequence.num_tokens), now_s)
            if plan is not None:
                self._next_step_id += 1
                self._in_flight.append(plan)
                return plan
            if not misfits:
                return None
        return None

    def apply(self, result: StepResult, now_s: float) -> dict[Hashable, Deltas]:
        """Applies the result of the oldest step in flight; answers each owner's news.

        Raises UnexpectedResult, with nothing changed, if it is no answer to that step.
        """
        engine = self._engine
        if engine is None or not self._in_flight:
            raise UnexpectedResult(f"result of step {result.step_id}, but no step is in flight")
        plan = self._in_flight[0]
        check_result(plan, result)
        self._in_flight.popleft()
        news, ended = self._emit(plan, result)
        # Acknowledge before ending: what ends now and is in no other step gives its blocks back at once.
        engine.acknowledge(plan)
        for sequence in plan.first_token:
            if sequence.output_token_ids and sequence.first_token_s is None:
                sequence.first_token_s = now_s
                self._observer.on_first_token(sequence, now_s)
        for sequence, reason in ended:
            self._end(sequence, reason, now_s)
        self.stats.num_steps += 1
        self.stats.num_scheduled_tokens += plan.num_tokens
        return news

    def _emit(self, plan: StepPlan, result: StepResult) -> tuple[dict[Hashable, Deltas], Ended]:
        rows = plan.sampling_rows
        news = self.take_news()
        num_rows = len(rows.sequences)
        if num_rows and not news and not plan.is_disturbed and rows.is_single_owner and not plan.pooled:
            deltas, ended = emit_undisturbed(plan, result.token_ids, result.logprobs)
            news[rows.sequences[0].request.owner] = deltas
            self.stats.num_generated_tokens += num_rows
        else:
            ended, num_wasted = emit_by_owner(plan, result.token_ids, result.logprobs, news)
            self.stats.num_generated_tokens += num_rows - num_wasted
            self.stats.num_wasted_tokens += num_wasted
        if plan.pooled:
            pooled_ends, _ = emit_pooled(plan, result.pooled, news)
            ended += pooled_ends
        if result.prompt_logprobs is not None:
            emit_prompt_logprobs(plan, result.prompt_logprobs, news)
        for request in plan.started:
            if request.num_unfinished:
                deltas = news.setdefault(request.owner, Deltas())
                deltas.started_handles.append(request.handle)
                deltas.num_cached_tokens.append(request.num_cached_tokens)
        return news, ended

    # The worker.

    def worker_ready(self, num_blocks: int) -> None:
        """A worker with an empty pool of `num_blocks` (null block included) takes steps from now on.

        Accepted requests that have outgrown this pool fail with the numbers when their turn comes. Raises ValueError
        on a pool without room, and while another worker is attached.
        """
        if self._engine is not None:
            raise ValueError("a worker is attached already")
        self._engine = EngineState(
            self.config, num_blocks, self._queue, self.events, self.stats, self._next_step_id - 1
        )
        limit = self.max_total_tokens
        for request in self._registry:
            for sequence in request.sequences:
                sequence.limit_to(limit)

    def worker_lost(self) -> None:
        """The worker and its pool are gone: running sequences wait again, with all their tokens, before all others.

        Plans in flight are dropped; the prefix index is emptied under a new epoch. Idempotent.
        """
        engine = self._engine
        if engine is None:
            return
        self._engine = None
        self._in_flight.clear()
        self.stats.num_worker_losses += 1
        for sequence in sorted(engine.running, key=lambda s: s.order):
            sequence.forget_placement()
            sequence.move_to(SequenceStatus.PREEMPTED)
            self._queue.push(sequence)
        self.events.cleared()

    # Ends.

    def _news_of(self, owner: Hashable) -> Deltas:
        return self._news.setdefault(owner, Deltas())

    def _fail(self, request: Request, error: SchedulerError, now_s: float) -> None:
        self._news_of(request.owner).rejections.append((request.handle, error))
        self._end_request(request, FinishReason.ERROR, now_s)

    def _end_request(self, request: Request, reason: FinishReason, now_s: float) -> None:
        for sequence in request.sequences:
            if sequence.status is not SequenceStatus.FINISHED:
                self._end(sequence, reason, now_s)

    def _promote_sibling(self, request: Request) -> None:
        """If the sequence ended whose prompt its siblings wait for, the first of them computes it."""
        source = request.fork_source
        if source is None or source.status is not SequenceStatus.FINISHED:
            return
        for sibling in request.sequences:
            if sibling.status is SequenceStatus.HELD:
                request.fork_source = sibling
                self._queue.release(sibling)
                return

    def _end(self, sequence: Sequence, reason: FinishReason, now_s: float) -> None:
        """Takes the sequence out of wherever it is; its blocks follow when its last step is acknowledged."""
        request = sequence.request
        engine = self._engine
        if sequence.status is not SequenceStatus.RUNNING:
            self._queue.remove(sequence)
        elif engine is not None:
            engine.running.remove(sequence)
            engine.retirement.retire(sequence)
        if engine is not None and engine.retirement.is_in_flight(sequence):
            for plan in self._in_flight:
                plan.is_disturbed = True
        sequence.move_to(SequenceStatus.FINISHED)
        sequence.finish_reason = reason
        self.stats.num_finished[reason] += 1
        self._observer.on_finished(sequence, now_s)
        request.num_unfinished -= 1
        if request.num_unfinished == 0:
            self._registry.remove(request)
