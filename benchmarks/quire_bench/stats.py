"""Statistics of a run: from RequestRecords to one JSON-ready summary. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire_bench.load import LoadResult
from quire_bench.openai_client import RequestRecord

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Latencies a request must keep to count as good, in milliseconds; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @classmethod
    def parse(cls, terms: Iterable[str]) -> ServiceLevel:
        """From terms such as `ttft:500`. ValueError for an unknown name or a value that is not above 0."""
        limits: dict[str, float] = {}
        for term in terms:
            name, _, value = term.partition(":")
            if name not in ("ttft", "tpot", "e2e"):
                raise ValueError(f"goodput: expected ttft, tpot or e2e, got {term!r}")
            try:
                limits[f"{name}_ms"] = float(value)
            except ValueError as error:
                raise ValueError(f"goodput: expected NAME:MILLISECONDS, got {term!r}") from error
            if not limits[f"{name}_ms"] > 0:
                raise ValueError(f"goodput: {name} must be above 0, got {value}")
        return cls(**limits)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the closest ranks of sorted `values` (numpy's default). ValueError when empty."""
    if not values:
        raise ValueError("percentile of no values")
    rank = (len(values) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (rank - low)


def distribution(values: Iterable[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum, rounded to three decimals; None when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    found = {"mean": sum(ordered) / len(ordered)}
    found |= {f"p{p}": percentile(ordered, p) for p in PERCENTILES}
    found["max"] = ordered[-1]
    return {name: round(value, 3) for name, value in found.items()}


def ttft_ms(record: RequestRecord) -> float | None:
    """Milliseconds from the scheduled start to the first text; None when no text came."""
    return (record.chunk_times[0] - record.scheduled) * 1e3 if record.chunk_times else None


def tpot_ms(record: RequestRecord) -> float | None:
    """Milliseconds a token after the first; None for an answer of fewer than two tokens or one chunk."""
    if record.num_output_tokens < 2 or len(record.chunk_times) < 2:
        return None
    return (record.chunk_times[-1] - record.chunk_times[0]) * 1e3 / (record.num_output_tokens - 1)


def e2e_ms(record: RequestRecord) -> float:
    """Milliseconds from the scheduled start to the end of the response."""
    return (record.finished - record.scheduled) * 1e3


def chunk_gaps_ms(record: RequestRecord) -> list[float]:
    """Milliseconds between neighbouring chunks that carry text."""
    times = record.chunk_times
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)]


def arrivals(record: RequestRecord, wall_offset_s: float, step_ms: float) -> list[tuple[float, float]]:
    """For each token, in order, its arrival here (wall clock, seconds) and the milliseconds since the worker's sample.

    A chunk says when its newest token was sampled. Where the running counts show that it holds more, the older ones are
    taken to be a step of `step_ms` apart, so that a delay that merges chunks is not hidden. The wall clock is
    time.perf_counter() plus the offset.
    """
    found = []
    num_before = 0
    for chunk in record.extension_chunks:
        num_so_far = num_before + 1 if chunk.num_tokens_so_far is None else chunk.num_tokens_so_far
        arrived = chunk.arrived + wall_offset_s
        newest = arrived * 1e3 - chunk.value["sampled_at_unix_us"] / 1e3
        found += [(arrived, newest + step_ms * age) for age in reversed(range(num_so_far - num_before))]
        num_before = num_so_far
    return found


def added_ms(record: RequestRecord, wall_offset_s: float, step_ms: float) -> list[float]:
    """The milliseconds of `arrivals`."""
    return [added for _, added in arrivals(record, wall_offset_s, step_ms)]


def is_good(record: RequestRecord, level: ServiceLevel) -> bool:
    """True when the request ended well within every limit; a latency that does not exist breaks none."""
    if not record.ok:
        return False
    pairs = (
        (ttft_ms(record), level.ttft_ms),
        (tpot_ms(record), level.tpot_ms),
        (e2e_ms(record), level.e2e_ms),
    )
    return all(limit is None or value is None or value <= limit for value, limit in pairs)


def summarise(result: LoadResult, level: ServiceLevel | None = None) -> dict[str, Any]:
    """The whole run as JSON values. Latencies are of requests that ended well; failed ones are counted by message."""
    good = [record for record in result.records if record.ok]
    failed = [record for record in result.records if not record.ok]
    duration = result.duration_s
    num_output = sum(record.num_output_tokens for record in good)
    num_input = sum(record.num_prompt_tokens for record in good)
    num_chunks = sum(len(record.chunk_times) for record in good)
    summary: dict[str, Any] = {
        "num_requests": len(result.records),
        "num_ok": len(good),
        "num_errors": len(failed),
        "errors": dict(Counter(record.error or "" for record in failed).most_common()),
        "duration_s": round(duration, 4),
        "requests_per_s": _rate(len(good), duration),
        "output_tokens_per_s": _rate(num_output, duration),
        "total_tokens_per_s": _rate(num_output + num_input, duration),
        "num_input_tokens": num_input,
        "num_output_tokens": num_output,
        "num_short_answers": sum(record.num_output_tokens < record.max_tokens for record in good),
        "token_count_source": dict(Counter(record.count_source for record in good)),
        "tokens_per_chunk": round(num_output / num_chunks, 3) if num_chunks else None,
        "ttft_ms": distribution(v for r in good if (v := ttft_ms(r)) is not None),
        "tpot_ms": distribution(v for r in good if (v := tpot_ms(r)) is not None),
        "itl_ms": distribution(gap for record in good for gap in chunk_gaps_ms(record)),
        "e2e_ms": distribution(e2e_ms(record) for record in good),
    }
    if level is not None:
        num_good = sum(is_good(record, level) for record in result.records)
        limits = {
            name: v for name in ("ttft_ms", "tpot_ms", "e2e_ms") if (v := getattr(level, name)) is not None
        }
        summary["goodput"] = {
            "limits": limits,
            "requests_per_s": _rate(num_good, duration),
            "share": round(num_good / len(result.records), 4) if result.records else None,
        }
    return summary


def _rate(count: int, duration_s: float) -> float:
    return round(count / duration_s, 3) if duration_s > 0 else 0.0
