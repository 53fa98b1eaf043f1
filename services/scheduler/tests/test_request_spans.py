"""One span per request, with its times and counts."""

from __future__ import annotations

import pytest

from quire_scheduler.request_spans import RequestSpans, traced
from quire_scheduler.scheduler import SchedulerCore

from .harness import CountingObserver, Harness

_TRACEPARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
_END_UNIX_NS = 1_000_000_000_000


class Sink:
    """Keeps what it is to write."""

    def __init__(self) -> None:
        self.spans: list[dict] = []

    def write(self, name, **fields):
        self.spans.append({"name": name, **fields})


@pytest.fixture
def sink():
    return Sink()


@pytest.fixture
def harness(sink):
    """A driven core that writes spans."""
    harness = Harness(max_steps_in_flight=1)
    harness.core = SchedulerCore(
        harness.config, RequestSpans(harness.observer, sink, lambda: _END_UNIX_NS), harness.events.append
    )
    harness.core.worker_ready(harness.num_blocks)
    return harness


def test_a_request_is_one_span_with_its_phases(harness, sink):
    """The span covers arrival to end below the caller's, and splits it into queue, prefill and decode."""
    harness.now_s = 5.0
    harness.submit([1, 2, 3], max_tokens=3, request_id="r", tenant="t", traceparent=_TRACEPARENT)
    for now_s in (7.0, 8.5, 9.0, 10.0):
        harness.now_s = now_s
        harness.plan()
        harness.now_s += 0.25
        if harness.in_flight:
            harness.apply()
    assert len(sink.spans) == 1
    span = sink.spans[0]
    assert (span["name"], span["traceparent"], span["end_unix_ns"]) == (
        "scheduler.request",
        _TRACEPARENT,
        _END_UNIX_NS,
    )
    # The harness's own clock moves a little with each step.
    times = {
        name: round(span["attributes"].pop(f"quire.{name}"), 1)
        for name in ("queue_s", "prefill_s", "decode_s")
    }
    assert times == {"queue_s": 2.0, "prefill_s": 0.3, "decode_s": 2.0}
    assert _END_UNIX_NS - span["start_unix_ns"] == pytest.approx(4.25e9, rel=0.02)
    assert span["attributes"] == {
        "quire.request_id": "r",
        "quire.tenant": "t",
        "quire.priority": 0,
        "quire.num_sequences": 1,
        "quire.num_cached_tokens": 0,
        "quire.num_preemptions": 0,
        "quire.finish_reasons": "length",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 3,
    }
    assert sum(harness.observer.ends.values()) == 1 == sum(harness.observer.first_tokens.values())


def test_several_sequences_share_the_span(harness, sink):
    """The span is written once, at the last end, with all output tokens and every reason."""
    request = harness.submit([1, 2, 3], max_tokens=4, n=3, request_id="r")
    for _ in range(3):
        harness.step()
    harness.abort_sequence(request, 1)
    assert sink.spans == []
    harness.run()
    assert len(sink.spans) == 1
    attributes = sink.spans[0]["attributes"]
    assert attributes["quire.num_sequences"] == 3
    assert attributes["quire.finish_reasons"] == "abort,length"
    assert attributes["gen_ai.usage.output_tokens"] == sum(len(s.output_token_ids) for s in request.sequences)


def test_a_request_that_never_ran_has_only_waited(harness, sink):
    """An abort in the queue gives a span whose whole time is queue time, without later phases."""
    request = harness.submit([1, 2, 3], max_tokens=4)
    harness.now_s = 2.5
    harness.abort(request)
    attributes = sink.spans[0]["attributes"]
    assert attributes["quire.queue_s"] == 2.5
    assert not {"quire.prefill_s", "quire.decode_s"} & set(attributes)


def test_nothing_is_wrapped_where_nothing_is_traced():
    """Without an endpoint the observer is the one that was there."""
    observer = CountingObserver()
    assert traced(observer, None) is observer
