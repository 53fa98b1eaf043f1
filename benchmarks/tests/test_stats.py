"""Statistics of a run, checked against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bench.load import LoadResult
from quire_bench.openai_client import ExtensionChunk, RequestRecord
from quire_bench.stats import (
    ServiceLevel,
    added_ms,
    distribution,
    is_good,
    percentile,
    summarise,
    tpot_ms,
    ttft_ms,
)


def record(
    chunk_times: list[float], num_tokens: int, *, finished: float, scheduled: float = 10.0
) -> RequestRecord:
    return RequestRecord(
        num_prompt_tokens=7,
        max_tokens=num_tokens,
        scheduled=scheduled,
        sent=scheduled,
        finished=finished,
        chunk_times=chunk_times,
        num_output_tokens=num_tokens,
        count_source="usage",
        finish_reason="length",
    )


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_equals_numpy(values: list[float], percent: float) -> None:
    """Percentiles interpolate as numpy's default does."""
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)


def test_percentile_of_nothing_is_an_error() -> None:
    """There is no percentile of no values, and a distribution of none is None."""
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    assert distribution([]) is None


def test_latencies_of_one_request() -> None:
    """Time to first token counts from the scheduled start; time per token divides by tokens, not by chunks."""
    coalesced = record([10.1, 10.3], 5, finished=10.35)
    assert ttft_ms(coalesced) == pytest.approx(100)
    assert tpot_ms(coalesced) == pytest.approx(50)
    assert tpot_ms(record([10.1], 5, finished=10.2)) is None
    assert ttft_ms(record([], 0, finished=10.2)) is None


def test_summary_counts_failures_apart() -> None:
    """Failed requests are counted by message and add nothing to throughput or latency."""
    failed = record([10.1], 3, finished=12.0)
    failed.error = "HTTP 429: full"
    result = LoadResult(
        [record([10.1, 10.2, 10.3, 10.4], 4, finished=10.5), failed], started=10.0, finished=12.0
    )
    summary = summarise(result)
    assert (summary["num_ok"], summary["num_errors"], summary["errors"]) == (1, 1, {"HTTP 429: full": 1})
    assert summary["output_tokens_per_s"] == pytest.approx(2.0)
    assert summary["total_tokens_per_s"] == pytest.approx(5.5)
    assert summary["requests_per_s"] == pytest.approx(0.5)
    assert summary["itl_ms"]["p50"] == pytest.approx(100)
    assert summary["e2e_ms"]["max"] == pytest.approx(500)
    assert summary["token_count_source"] == {"usage": 1}


def test_goodput_wants_every_limit_kept() -> None:
    """A request is good when it ended well within all limits; goodput is the rate of such requests."""
    fast, slow = record([10.1, 10.2], 2, finished=10.2), record([10.9, 11.0], 2, finished=11.0)
    broken = record([10.1, 10.2], 2, finished=10.2)
    broken.error = "boom"
    level = ServiceLevel.parse(["ttft:500", "e2e:2000"])
    assert [is_good(r, level) for r in (fast, slow, broken)] == [True, False, False]
    good = summarise(LoadResult([fast, slow, broken], 10.0, 12.0), level)["goodput"]
    assert good == {"limits": {"ttft_ms": 500.0, "e2e_ms": 2000.0}, "requests_per_s": 0.5, "share": 0.3333}


@pytest.mark.parametrize("term", ["itl:5", "ttft", "ttft:x", "ttft:0", "tpot:nan"])
def test_bad_goodput_terms_are_refused(term: str) -> None:
    """An unknown name or a limit that is not a number above 0 is a ValueError that says goodput."""
    with pytest.raises(ValueError, match="goodput"):
        ServiceLevel.parse([term])


def test_added_latency_is_arrival_minus_sample() -> None:
    """Sample time is compared with the chunk's arrival; older tokens of a merged chunk waited steps longer."""
    timed = record([10.1, 10.2], 4, finished=10.2)
    timed.extension_chunks = [
        ExtensionChunk(10.1, {"sampled_at_unix_us": 1_000_010_099_000}, 1),
        ExtensionChunk(10.2, {"sampled_at_unix_us": 1_000_010_198_500}, 4),
    ]
    assert added_ms(timed, 1_000_000.0, 10.0) == pytest.approx([1.0, 21.5, 11.5, 1.5], abs=1e-3)
    timed.extension_chunks = [ExtensionChunk(10.2, {"sampled_at_unix_us": 1_000_010_198_500}, None)]
    assert added_ms(timed, 1_000_000.0, 10.0) == pytest.approx([1.5], abs=1e-3)
