"""Answers capacity questions: runs the real SchedulerCore against a latency model in virtual time, without sockets.

It knows nothing of networks or text: a trace of arrivals goes in, latencies and throughput come out, and the same input
always gives the same output.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.errors import InvalidRequest, QueueFull
from quire_scheduler.request import FinishReason, Request, SamplingParams, Sequence
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import StepPlan, StepResult

OWNER = "simulator"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace. Requests with the same `prefix` share their first `num_prefix_tokens` prompt tokens."""

    time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    prefix: str = ""
    num_prefix_tokens: int = 0
    priority: int = 0
    tenant: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """How long a step takes: a floor, a share per token computed, and a share per token of context read.

    Fit it to measured steps of the worker in question: milliseconds for the floor, microseconds for the others.
    """

    step_ms: float = 5.0
    us_per_token: float = 20.0
    us_per_context_token: float = 0.0

    def duration_s(self, plan: StepPlan) -> float:
        """Virtual seconds of the step on the worker."""
        context = 0
        if self.us_per_context_token:
            context = sum(sequence.num_planned_tokens for sequence in plan.sampling_rows.sequences)
        micros = self.us_per_token * plan.num_tokens + self.us_per_context_token * context
        return self.step_ms / 1e3 + micros / 1e6


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one kind of latency, seconds; all 0 when nothing was measured."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, values: list[float]) -> Percentiles:
        """Nearest-rank percentiles."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        p50, p90, p99 = (
            ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99)
        )
        return cls(p50, p90, p99, sum(ordered) / len(ordered))


@dataclass(frozen=True, slots=True)
class Report:
    """What the trace met. Rates are per virtual second, from the first arrival to the last token."""

    num_requests: int
    num_completed: int
    num_refused: int
    num_expired: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    time_to_first_token_s: Percentiles
    time_per_output_token_s: Percentiles
    end_to_end_s: Percentiles
    num_steps: int
    num_preemptions: int
    # Prompt tokens found in the prefix cache over all prompt tokens.
    prefix_hit_share: float
    max_running: int
    max_waiting: int
    max_used_blocks: int


@dataclass(slots=True)
class _Latencies:
    """Collects what the core tells of sequences' lives."""

    first_token_s: list[float] = field(default_factory=list)
    per_output_token_s: list[float] = field(default_factory=list)
    end_to_end_s: list[float] = field(default_factory=list)
    num_expired: int = 0
    num_output_tokens: int = 0

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        """See LifecycleObserver."""
        self.first_token_s.append(now_s - sequence.request.arrival_s)

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        """See LifecycleObserver."""
        num_outputs = len(sequence.output_token_ids)
        self.num_output_tokens += num_outputs
        if sequence.finish_reason is FinishReason.DEADLINE:
            self.num_expired += 1
            return
        self.end_to_end_s.append(now_s - sequence.request.arrival_s)
        if sequence.first_token_s is not None and num_outputs > 1:
            self.per_output_token_s.append((now_s - sequence.first_token_s) / (num_outputs - 1))


class Simulator:
    """One engine with `num_blocks` blocks (null block included) and a worker that takes `latency` for a step."""

    def __init__(self, config: SchedulerConfig, num_blocks: int, latency: LatencyModel) -> None:
        self._latencies = _Latencies()
        self._core = SchedulerCore(config, self._latencies)
        self._core.worker_ready(num_blocks)
        self._latency = latency
        # Plans in flight with the time their result is there.
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._worker_free_s = 0.0
        self._num_refused = 0
        self._max_running = 0
        self._max_waiting = 0
        self._max_used_blocks = 0

    def run(self, trace: Iterable[Arrival]) -> Report:
        """Plays the trace, in order of time, to the end. May be called once."""
        arrivals = sorted(trace, key=lambda arrival: arrival.time_s)
        start_s = now_s = arrivals[0].time_s if arrivals else 0.0
        next_arrival = 0
        while True:
            while next_arrival < len(arrivals) and arrivals[next_arrival].time_s <= now_s:
                self._submit(arrivals[next_arrival], next_arrival)
                next_arrival += 1
            self._core.expire(now_s)
            self._fill_pipeline(now_s)
            upcoming_s = []
            if next_arrival < len(arrivals):
                upcoming_s.append(arrivals[next_arrival].time_s)
            if self._in_flight:
                upcoming_s.append(self._in_flight[0][1])
            if not upcoming_s:
                break
            now_s = min(upcoming_s)
            while self._in_flight and self._in_flight[0][1] <= now_s:
                self._apply(now_s)
        return self._report(len(arrivals), now_s - start_s)

    def _submit(self, arrival: Arrival, number: int) -> None:
        request = Request(
            owner=OWNER,
            handle=number,
            prompt_token_ids=_prompt(arrival, number),
            sampling=SamplingParams(max_tokens=arrival.num_output_tokens),
            priority=arrival.priority,
            tenant=arrival.tenant,
            deadline_s=None if arrival.timeout_s is None else arrival.time_s + arrival.timeout_s,
        )
        try:
            self._core.submit(request, arrival.time_s)
        except (QueueFull, InvalidRequest):
            self._num_refused += 1

    def _fill_pipeline(self, now_s: float) -> None:
        while (plan := self._core.plan(now_s)) is not None:
            self._worker_free_s = max(self._worker_free_s, now_s) + self._latency.duration_s(plan)
            self._in_flight.append((plan, self._worker_free_s))
        load = self._core.load(now_s)
        self._max_running = max(self._max_running, load.num_running)
        self._max_waiting = max(self._max_waiting, load.num_waiting)
        self._max_used_blocks = max(self._max_used_blocks, load.num_used_blocks)

    def _apply(self, now_s: float) -> None:
        plan, _ = self._in_flight.popleft()
        slots = plan.sampling_rows.slots
        self._core.apply(StepResult(plan.step_id, slots, [0] * len(slots)), now_s)

    def _report(self, num_requests: int, duration_s: float) -> Report:
        stats, seen = self._core.stats, self._latencies
        num_completed = len(seen.end_to_end_s)
        per_s = 1 / duration_s if duration_s > 0 else 0.0
        return Report(
            num_requests=num_requests,
            num_completed=num_completed,
            num_refused=self._num_refused,
            num_expired=seen.num_expired,
            duration_s=duration_s,
            requests_per_s=num_completed * per_s,
            output_tokens_per_s=seen.num_output_tokens * per_s,
            time_to_first_token_s=Percentiles.of(seen.first_token_s),
            time_per_output_token_s=Percentiles.of(seen.per_output_token_s),
            end_to_end_s=Percentiles.of(seen.end_to_end_s),
            num_steps=stats.num_steps,
            num_preemptions=stats.num_preemptions,
            prefix_hit_share=stats.num_cached_prompt_tokens / max(1, stats.num_prompt_tokens),
            max_running=self._max_running,
            max_waiting=self._max_waiting,
            max_used_blocks=self._max_used_blocks,
        )


def _prompt(arrival: Arrival, number: int) -> list[int]:
    """Tokens that differ between requests but for the shared prefix."""
    num_shared = min(arrival.num_prefix_tokens, arrival.num_prompt_tokens)
    shared = random.Random(arrival.prefix)
    own = random.Random(number)
    tokens = [shared.randrange(1 << 30) for _ in range(num_shared)]
    return tokens + [own.randrange(1 << 30) for _ in range(arrival.num_prompt_tokens - num_shared)]


def poisson_trace(
    num_requests: int,
    requests_per_s: float,
    num_prompt_tokens: int,
    num_output_tokens: int,
    seed: int = 0,
) -> list[Arrival]:
    """Arrivals at random at that mean rate; lengths spread evenly from half to one and a half of those given."""
    if requests_per_s <= 0:
        raise ValueError(f"requests_per_s must be above 0, got {requests_per_s}")
    rng = random.Random(seed)
    now_s = 0.0
    trace = []
    for _ in range(num_requests):
        now_s += rng.expovariate(requests_per_s)
        prompt = rng.randint(max(1, num_prompt_tokens // 2), num_prompt_tokens * 3 // 2)
        output = rng.randint(max(1, num_output_tokens // 2), num_output_tokens * 3 // 2)
        trace.append(Arrival(now_s, prompt, output))
    return trace
