"""A driver of the scheduler against a worker that checks what it reads; it checks the scheduler's invariants."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.request import FinishReason, Request, SamplingParams, Sequence, SequenceStatus
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import Deltas, PromptLogprobs, StepPlan, StepResult

from .fake_worker import FakeWorker
from .reference import reference_output


class CountingObserver:
    """Counts ends and first tokens per sequence."""

    def __init__(self) -> None:
        self.ends: Counter[Sequence] = Counter()
        self.first_tokens: Counter[Sequence] = Counter()

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        self.first_tokens[sequence] += 1

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        self.ends[sequence] += 1


@dataclass
class Flight:
    """A step in flight: its result, held back, and the blocks it touches or fills."""

    plan: StepPlan
    result: StepResult
    touched: set[int]
    written: set[int]


class Harness:
    """Drives a SchedulerCore with a FakeWorker and checks invariants after every call."""

    def __init__(self, num_blocks: int = 32, **config: object) -> None:
        defaults: dict[str, object] = {
            "block_size": 4,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 16,
            "max_model_len": 64,
            "watermark": 0.0,
        }
        self.config = SchedulerConfig(**(defaults | config))  # type: ignore[arg-type]
        self.observer = CountingObserver()
        self.events: list[object] = []
        self.core = SchedulerCore(self.config, self.observer, self.events.append)
        self.num_blocks = num_blocks
        self.now_s = 0.0
        self.in_flight: deque[Flight] = deque()
        self.requests: list[Request] = []
        self.outputs: dict[tuple[object, int, int], list[int]] = {}
        self.finishes: dict[tuple[object, int, int], FinishReason] = {}
        self.rejections: dict[tuple[object, int], Exception] = {}
        self.started: dict[tuple[object, int], int] = {}
        self.aborted: set[tuple[object, int]] = set()
        self.aborted_sequences: set[tuple[object, int, int]] = set()
        # Per request the log-probabilities of its prompt that came: one more for each position, in order.
        self.prompt_logprobs: dict[tuple[object, int], list[float]] = {}
        self.plans: list[StepPlan] = []
        self.connect()

    # Actions.

    def connect(self, num_blocks: int | None = None) -> None:
        """A fresh worker."""
        self.num_blocks = num_blocks or self.num_blocks
        self.worker = FakeWorker(self.num_blocks, self.config.block_size)
        self.core.worker_ready(self.num_blocks)

    def lose_worker(self) -> None:
        """The worker dies with all its results."""
        self.core.worker_lost()
        self.in_flight.clear()

    def submit(self, prompt: list[int], handle: int | None = None, **fields: object) -> Request:
        """Submits a request; sampling fields and request fields may be mixed."""
        names = set(SamplingParams.__slots__)
        sampling = {name: fields.pop(name) for name in list(fields) if name in names}
        fields.setdefault("owner", "gateway")
        request = Request(
            handle=len(self.requests) + 1 if handle is None else handle,
            prompt_token_ids=prompt,
            sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
            **fields,  # type: ignore[arg-type]
        )
        self.core.submit(request, self.now_s)
        self.requests.append(request)
        for sequence in request.sequences:
            self.outputs[self._key(sequence)] = list(request.resumed.get(sequence.index, []))
        self._take(self.core.take_news())
        return request

    def plan(self) -> StepPlan | None:
        """Plans one step and lets the worker run it; its result stays in flight."""
        plan = self.core.plan(self.now_s)
        self._take(self.core.take_news())
        if plan is None:
            return None
        self.plans.append(plan)
        self._check_plan(plan)
        result = self.worker.execute(plan)
        assert result.slots == plan.sampling_rows.slots, "scheduler and worker disagree on who samples"
        touched: set[int] = set(plan.copy_source_block_ids) | set(plan.copy_target_block_ids)
        written: set[int] = set(plan.copy_target_block_ids)
        for slot, count in zip(plan.slots, plan.num_new_tokens, strict=True):
            row = self.worker.rows[slot]
            touched.update(row.block_table)
            first = (row.num_computed - count) // self.config.block_size
            written.update(row.block_table[first:])
        self.in_flight.append(Flight(plan, result, touched, written))
        assert len(self.in_flight) <= self.config.max_steps_in_flight
        return plan

    def apply(self) -> dict[object, Deltas]:
        """Applies the oldest result in flight."""
        flight = self.in_flight.popleft()
        self.now_s += 0.01
        news = self.core.apply(flight.result, self.now_s)
        self._take(news)
        return news

    def step(self) -> StepPlan | None:
        """Fills the pipeline, then applies one result."""
        last = None
        while (plan := self.plan()) is not None:
            last = plan
        if self.in_flight:
            self.apply()
        return last

    def run(self, max_steps: int = 3000) -> None:
        """Steps until nothing is left; fails when waiting work makes no progress."""
        for _ in range(max_steps):
            if not self.core.num_requests and not self.in_flight:
                return
            self.step()
            self.check()
            self.check_not_stuck()
        raise AssertionError(f"no end after {max_steps} steps: {self.core.load(self.now_s)}")

    def abort(self, request: Request) -> bool:
        """Aborts a request."""
        self.aborted.add((request.owner, request.handle))
        return self.core.abort(request.owner, request.handle, self.now_s)

    def abort_sequence(self, request: Request, index: int) -> bool:
        """Aborts one sequence of a request."""
        self.aborted_sequences.add((request.owner, request.handle, index))
        return self.core.abort(request.owner, request.handle, self.now_s, index)

    def expire(self) -> int:
        """Expires by the harness's clock."""
        count = self.core.expire(self.now_s)
        self._take(self.core.take_news())
        return count

    # Observations.

    def output(self, request: Request, index: int = 0) -> list[int]:
        """All output so far."""
        return self.outputs[(request.owner, request.handle, index)]

    def reason(self, request: Request, index: int = 0) -> FinishReason | None:
        """Why the sequence ended, as the owner was told."""
        return self.finishes.get((request.owner, request.handle, index))

    def expected(self, request: Request, index: int = 0) -> list[int]:
        """What the sequence must give if nobody stops it."""
        return reference_output(request, index, self.core.max_total_tokens)

    def num_free(self) -> int:
        """Free blocks."""
        return self.core.load(self.now_s).num_free_blocks

    # Checks.

    def check(self) -> None:
        """Free + used = total, and every block's ref count is the number of its holders."""
        engine = self.core._engine
        if engine is None:
            return
        holders: Counter[int] = Counter()
        for sequence in engine.running:
            assert sequence.status is SequenceStatus.RUNNING
            holders.update(sequence.block_table)
        for entries in engine.retirement._deferred.values():
            for _, table, _, _ in entries:
                holders.update(table)
        for block_id in range(self.num_blocks):
            assert engine.pool.ref_count(block_id) == holders[block_id], f"block {block_id}"
        load = self.core.load(self.now_s)
        assert load.num_free_blocks + len(holders) == load.num_total_blocks == self.num_blocks - 1
        assert 0 not in holders
        assert load.num_running <= self.config.max_num_seqs
        waiting = [s for r in self.core._registry for s in r.sequences if s.status.value in WAITING_STATES]
        assert load.num_waiting == len(waiting)
        known = sum(s.num_tokens for s in waiting if s.status.value != "held")
        # Tokens in flight may still reach a preempted sequence; it is counted as it was then.
        assert 0 <= known - load.num_waiting_tokens <= len(waiting) * self.config.max_steps_in_flight
        assert engine.retirement.is_pending == (engine.retirement.num_pending_blocks > 0)

    def check_not_stuck(self) -> None:
        """Idle and waiting means: the next plan admits somebody or fails somebody."""
        if not self.in_flight and self.core.num_requests and self.core.has_worker:
            num_requests = self.core.num_requests
            assert self.plan() is not None or self.core.num_requests < num_requests, "idle, waiting, stuck"

    def check_ended(self) -> None:
        """Every accepted sequence has ended exactly once, with the output it must have, and the pool is empty."""
        assert self.core.num_requests == 0
        assert self.num_free() == self.num_blocks - 1
        for request in self.requests:
            for sequence in request.sequences:
                assert sequence.status is SequenceStatus.FINISHED
                assert self.observer.ends[sequence] == 1
                assert self.observer.first_tokens[sequence] <= 1
                self._check_output(request, sequence)

    def _check_output(self, request: Request, sequence: Sequence) -> None:
        key = self._key(sequence)
        expected = self.expected(request, sequence.index)
        assert sequence.output_token_ids == self.outputs[key] or sequence.finish_reason is FinishReason.ABORT
        if sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert self.outputs[key] == expected
            assert self.finishes[key] is sequence.finish_reason
            # A resumed sequence may have ended before: whoever had its output had the scores too.
            has_run = len(expected) > len(request.resumed.get(sequence.index, []))
            if has_run and request.sampling.num_prompt_logprobs is not None:
                assert len(self.prompt_logprobs.get(key[:2], [])) == len(request.prompt_token_ids) - 1
        else:
            assert self.outputs[key] == expected[: len(self.outputs[key])]
        if sequence.finish_reason is FinishReason.DEADLINE:
            assert self.finishes[key] is FinishReason.DEADLINE
        if sequence.finish_reason is FinishReason.ABORT:
            assert key not in self.finishes

    def _check_plan(self, plan: StepPlan) -> None:
        assert sum(plan.num_new_tokens) == plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(plan.slots) == len(plan.num_new_tokens) <= self.config.max_num_seqs
        fresh = set(plan.new_block_ids)
        for new in plan.new_sequences:
            first_own = new.num_computed_tokens // self.config.block_size
            fresh.update(new.block_ids[first_own:])
            if new.request.n == 1:
                for flight in self.in_flight:
                    shared = set(new.block_ids[:first_own])
                    assert not shared & flight.written, "shares a block that a step in flight still fills"
        for flight in self.in_flight:
            assert not fresh & flight.touched, "hands out a block that a step in flight may touch"

    def _take(self, news: dict[object, Deltas]) -> None:
        for owner, deltas in news.items():
            if deltas.prompt_logprobs is not None:
                self._take_prompt_logprobs(owner, deltas.prompt_logprobs)
            tokens = iter(deltas.token_ids)
            logprob_of = {} if deltas.logprobs is None else self._logprobs(deltas)
            for row, (handle, index) in enumerate(zip(deltas.handles, deltas.sequence_indices, strict=True)):
                key = (owner, handle, index)
                assert (owner, handle) not in self.aborted, "news of an aborted request"
                assert key not in self.aborted_sequences, "news of an aborted sequence"
                assert key not in self.finishes, "news after the end"
                new = [next(tokens) for _ in range(deltas.num_tokens[row])]
                if new:
                    self._check_prompt_is_scored(owner, handle)
                self.outputs[key].extend(new)
                assert logprob_of.get(row, [-float(t) for t in new]) == [-float(t) for t in new]
                if deltas.finish_reasons and deltas.finish_reasons[row]:
                    self.finishes[key] = FinishReason(deltas.finish_reasons[row])
            assert next(tokens, None) is None
            assert len(deltas.num_tokens) == len(deltas.handles)
            assert len(deltas.finish_reasons) in (0, len(deltas.handles))
            for handle, cached in zip(deltas.started_handles, deltas.num_cached_tokens, strict=True):
                assert (owner, handle) not in self.started, "started twice"
                self.started[(owner, handle)] = cached
            for handle, error in deltas.rejections:
                assert (owner, handle) not in self.rejections
                self.rejections[(owner, handle)] = error

    def _take_prompt_logprobs(self, owner: object, found: PromptLogprobs) -> None:
        prompts = {
            request.handle: request.prompt_token_ids for request in self.requests if request.owner == owner
        }
        columns = found.columns
        for i, (handle, position) in enumerate(zip(found.keys, found.positions, strict=True)):
            assert (owner, handle) not in self.aborted
            scores = self.prompt_logprobs.setdefault((owner, handle), [])
            assert position == len(scores) + 1, "a position twice, or out of order"
            assert columns.logprobs[i] == columns.top_logprobs[i] == -float(prompts[handle][position])
            scores.append(columns.logprobs[i])

    def _check_prompt_is_scored(self, owner: object, handle: int) -> None:
        request = self.core._registry.get(owner, handle)
        if request is None:
            return
        wanted = 0 if request.sampling.num_prompt_logprobs is None else len(request.prompt_token_ids) - 1
        assert len(self.prompt_logprobs.get((owner, handle), [])) == wanted, (
            "output before the whole prompt's scores"
        )

    @staticmethod
    def _logprobs(deltas: Deltas) -> dict[int, list[float]]:
        assert deltas.logprobs is not None
        found: dict[int, list[float]] = {}
        for row, value, top in zip(
            deltas.logprobs.rows, deltas.logprobs.logprobs, deltas.logprobs.top_logprobs, strict=True
        ):
            assert value == top
            found.setdefault(row, []).append(value)
        return found

    @staticmethod
    def _key(sequence: Sequence) -> tuple[object, int, int]:
        return (sequence.request.owner, sequence.request.handle, sequence.index)


WAITING_STATES = ("held", "waiting", "preempted")
