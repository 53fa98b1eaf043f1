"""Where the scheduler's own time per step goes, and histograms cheap enough to be filled in every step.

Plain numbers; metrics.py shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from time import perf_counter_ns

# Seconds, from a simulated step to a long generation.
STEP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
TOKEN_BUCKETS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


class Histogram:
    """Counts per bucket and a sum; adding an observation is one bisection."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        # One more: above the last bound.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper bounds and how many observations are at or below each, as Prometheus wants them."""
        total = 0
        buckets = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), total))
        return buckets


@dataclass(slots=True)
class PhaseTimes:
    """Nanoseconds spent in each phase of all steps so far; the rest of the process's time is transport."""

    # Making plans.
    plan_ns: int = 0
    # Taking results in: sequences grow and end, deltas are made.
    apply_ns: int = 0
    # Turning plans, results and frames into messages and back.
    plan_encode_ns: int = 0
    result_decode_ns: int = 0
    frame_encode_ns: int = 0
    # Time that the worker's sampling waited for masks, microseconds.
    mask_wait_us: int = 0
    num_plans: int = 0
    num_frames: int = 0

    @staticmethod
    def now() -> int:
        """The clock of all phases."""
        return perf_counter_ns()
