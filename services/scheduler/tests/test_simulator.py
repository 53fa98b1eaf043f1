"""The simulator: exact times on small traces, and the shape of answers to capacity questions."""

from __future__ import annotations

import pytest

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.simulator import Arrival, LatencyModel, Percentiles, Report, Simulator, poisson_trace


def simulate(trace, num_blocks: int = 2000, latency: LatencyModel | None = None, **config) -> Report:
    latency = latency or LatencyModel(step_ms=10.0, us_per_token=0.0)
    return Simulator(SchedulerConfig(**config), num_blocks, latency).run(trace)


def test_one_request_takes_one_step_per_token():
    """With 10 ms steps, 5 tokens take 50 ms, the first of them 10 ms."""
    report = simulate([Arrival(3.0, 20, 5)])
    assert report.num_completed == 1
    assert report.time_to_first_token_s.p50 == pytest.approx(0.010)
    assert report.time_per_output_token_s.p50 == pytest.approx(0.010)
    assert report.end_to_end_s.p99 == pytest.approx(0.050)
    assert report.output_tokens_per_s == pytest.approx(100)


def test_the_latency_model_counts_tokens_and_context():
    """A prefill of 100 tokens at 100 us a token adds 10 ms; a context price adds to decodes."""
    latency = LatencyModel(step_ms=10.0, us_per_token=100.0)
    report = simulate([Arrival(0.0, 100, 1)], latency=latency)
    assert report.end_to_end_s.p50 == pytest.approx(0.020)
    latency = LatencyModel(step_ms=10.0, us_per_token=0.0, us_per_context_token=10.0)
    report = simulate([Arrival(0.0, 100, 1)], latency=latency)
    assert report.end_to_end_s.p50 == pytest.approx(0.011)


def test_a_shared_prefix_is_found():
    """The second request with the same prefix finds all its full blocks."""
    trace = [Arrival(t, 64, 2, prefix="system", num_prefix_tokens=48) for t in (0.0, 1.0)]
    assert simulate(trace).prefix_hit_share == pytest.approx(48 / 128)


def test_the_same_trace_gives_the_same_report():
    """Nothing depends on the wall clock."""
    trace = poisson_trace(60, 20.0, 200, 30)
    assert simulate(trace) == simulate(trace)


def test_overload_shows_as_waiting_refusals_and_expiry():
    """Beyond capacity requests wait, are refused when the queue is full, and expire at their deadline."""
    trace = [Arrival(0.001 * i, 50, 20, timeout_s=0.5) for i in range(60)] + [Arrival(0.0, 10_000, 1)]
    report = simulate(trace, max_num_seqs=4, max_num_batched_tokens=64, max_waiting_sequences=20)
    assert report.num_refused > 1
    assert report.num_expired > 0
    assert report.num_completed + report.num_refused + report.num_expired == report.num_requests == 61
    assert report.max_running == 4
    assert report.max_waiting == 20


def test_a_small_pool_preempts_and_still_completes_all():
    """With too few blocks for the batch there are preemptions, never losses."""
    trace = [Arrival(0.0, 30, 200, priority=i, tenant=str(i)) for i in range(12)]
    report = simulate(trace, num_blocks=40)
    assert report.num_preemptions > 0
    assert report.num_completed == 12
    assert report.max_used_blocks <= 39


def test_more_load_means_more_latency():
    """At ten times the arrival rate the 99th percentile of time to first token is worse."""
    calm, busy = (
        simulate(poisson_trace(80, rate, 400, 20), max_num_seqs=4, max_num_batched_tokens=256)
        for rate in (2.0, 20.0)
    )
    assert busy.time_to_first_token_s.p99 > 2 * calm.time_to_first_token_s.p99


def test_empty_traces_and_bad_rates():
    """Nothing in, nothing out; a rate must be above 0."""
    assert simulate([]).end_to_end_s == Percentiles(0.0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="requests_per_s must be above 0"):
        poisson_trace(1, 0.0, 1, 1)
