"""Counters of one scheduler since its start, and the load right now; plain numbers for metrics and frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from quire_scheduler.request import FinishReason, Sequence


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the start; tokens unless named otherwise."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    # Sampled for sequences that had ended by then.
    num_wasted_tokens: int = 0
    num_prefix_query_tokens: int = 0
    num_prefix_hit_tokens: int = 0
    num_worker_losses: int = 0
    num_refused_requests: int = 0
    num_finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is. Nothing is capped: autoscalers and routers compare replicas by it."""

    num_waiting: int
    num_running: int
    num_waiting_tokens: int
    num_total_blocks: int
    num_free_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    # How long the request has waited that waits longest, 0 when none does.
    oldest_wait_s: float


class LifecycleObserver(Protocol):
    """Is told of the turning points of a sequence's life, for metrics; times are the injected clock's."""

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        """Its first token ever has arrived."""
        ...

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        """It ended; `finish_reason` is set. Called exactly once per sequence."""
        ...


class IgnoringObserver:
    """Watches nothing."""

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        """Ignored."""

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        """Ignored."""
