"""What an engine run is measured by: when each token of each request arrived, and the figures made of it.

Knows neither gRPC nor devices.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field
from typing import Any

from workloads import Workload


@dataclass(slots=True)
class Recorder:
    """Arrivals of tokens, in seconds of one clock.

    One entry of `steps` per frame: (time, tokens in it, worker's wall clock of the sampling in microseconds).
    """

    started_s: float
    first_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    steps: list[tuple[float, int, int]] = field(default_factory=list)

    def add(self, now_s: float, handles: list[int], num_tokens: list[int], sampled_at_us: int) -> None:
        """One frame."""
        total = 0
        for handle, count in zip(handles, num_tokens, strict=True):
            if count:
                self.first_s.setdefault(handle, now_s)
                self.last_s[handle] = now_s
                self.counts[handle] = self.counts.get(handle, 0) + count
                total += count
        if total:
            self.steps.append((now_s, total, sampled_at_us))


def figures(name: str, workload: Workload, recorder: Recorder) -> dict[str, Any]:
    """The figures of one run. RuntimeError if a request got another number of tokens than it asked for."""
    for handle, request in enumerate(workload.requests):
        if recorder.counts.get(handle, 0) != request.num_output_tokens:
            raise RuntimeError(
                f"{name}: request {handle} got {recorder.counts.get(handle, 0)} tokens of {request.num_output_tokens}"
            )
    wall_s = max(recorder.last_s.values()) - recorder.started_s
    first_s = sorted(time - recorder.started_s for time in recorder.first_s.values())
    result = {
        "wall_s": round(wall_s, 5),
        "output_tokens_per_s": round(workload.num_output_tokens / wall_s, 1),
        "prompt_tokens_per_s": round(workload.num_prompt_tokens / wall_s, 1),
        "requests_per_s": round(len(workload.requests) / wall_s, 2),
        "first_token_ms_median": round(1e3 * statistics.median(first_s), 3),
        "first_token_ms_max": round(1e3 * first_s[-1], 3),
    }
    if len(workload.requests) == 1 and workload.num_output_tokens > 1:
        span_s = recorder.last_s[0] - recorder.first_s[0]
        result["ms_per_token"] = round(1e3 * span_s / (workload.num_output_tokens - 1), 4)
    full = full_batch_steps_ms(
        recorder, min(len(workload.requests), max(count for _, count, _ in recorder.steps))
    )
    if len(full) > 8:
        result["full_batch_step_ms_median"] = round(statistics.median(full), 4)
        result["full_batch_step_ms_p95"] = round(sorted(full)[int(0.95 * len(full))], 4)
    return result


def full_batch_steps_ms(recorder: Recorder, size: int) -> list[float]:
    """Times between two steps on end that both brought `size` tokens, by the worker's clock."""
    steps = recorder.steps
    return [
        (later[2] - earlier[2]) * 1e-3
        for earlier, later in itertools.pairwise(steps)
        if earlier[1] == later[1] == size
    ]


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median of each figure, and the runs' smallest and largest."""
    return {
        name: {
            "median": statistics.median(run[name] for run in runs),
            "min": min(run[name] for run in runs),
            "max": max(run[name] for run in runs),
        }
        for name in runs[0]
    }
