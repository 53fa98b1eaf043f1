"""One line about the load every few seconds in which steps ran; nothing while idle."""

from __future__ import annotations

from quire_scheduler.stats import Load, SchedulerStats
from quire_servicekit.logging import get_logger

log = get_logger("engine")


class LoadLog:
    """Remembers the totals at the last line, to tell rates."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._since_s: float | None = None
        self._last_step_s = 0.0
        self._num_steps = 0
        self._num_generated = 0
        self._num_prompt = 0

    def is_due(self, now_s: float, stats: SchedulerStats) -> bool:
        """Called for every step. After a pause the interval begins anew."""
        if self._since_s is None or now_s - self._last_step_s > self._interval_s:
            self._begin(now_s, stats)
            self._last_step_s = now_s
            return False
        self._last_step_s = now_s
        return now_s - (self._since_s or 0.0) >= self._interval_s

    def write(self, now_s: float, load: Load, stats: SchedulerStats) -> None:
        """Log the load and the rates since the last line."""
        assert self._since_s is not None, "write before is_due"
        elapsed_s = now_s - self._since_s
        log.info(
            "load",
            running=load.num_running,
            waiting=load.num_waiting,
            blocks_used=load.num_used_blocks,
            blocks_cached=load.num_cached_blocks,
            blocks_total=load.num_total_blocks,
            output_tokens_per_s=round((stats.num_generated_tokens - self._num_generated) / elapsed_s, 1),
            prompt_tokens_per_s=round((stats.num_prompt_tokens - self._num_prompt) / elapsed_s, 1),
            steps_per_s=round((stats.num_steps - self._num_steps) / elapsed_s, 1),
        )
        self._begin(now_s, stats)

    def _begin(self, now_s: float, stats: SchedulerStats) -> None:
        self._since_s = now_s
        self._num_steps = stats.num_steps
        self._num_generated = stats.num_generated_tokens
        self._num_prompt = stats.num_prompt_tokens
