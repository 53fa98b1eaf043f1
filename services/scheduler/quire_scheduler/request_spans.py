"""One trace span per request, written when its last sequence ends: queue, prefill and decode times, token counts.

Knows no exporter: spans go to whatever writes them. Where nothing is traced, requests cost nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from quire_scheduler.request import Request, Sequence
from quire_scheduler.stats import LifecycleObserver
from quire_servicekit.tracing import span_writer

SPAN_NAME = "scheduler.request"


class SpanSink(Protocol):
    """Writes spans of things that are over; see quire_servicekit.tracing.SpanWriter."""

    def write(
        self,
        name: str,
        *,
        traceparent: str,
        start_unix_ns: int,
        end_unix_ns: int,
        attributes: Mapping[str, str | int | float],
    ) -> None:
        """Write one span; must not block."""
        ...


class RequestSpans:
    """Tells another observer everything, and writes a span when a request ends."""

    def __init__(
        self, observer: LifecycleObserver, sink: SpanSink, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._observer = observer
        self._sink = sink
        self._unix_ns = unix_ns

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        """See LifecycleObserver."""
        self._observer.on_first_token(sequence, now_s)

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        """See LifecycleObserver. The request still counts the sequence that ends as unfinished."""
        self._observer.on_finished(sequence, now_s)
        request = sequence.request
        if request.num_unfinished > 1:
            return
        end_unix_ns = self._unix_ns()
        self._sink.write(
            SPAN_NAME,
            traceparent=request.traceparent,
            start_unix_ns=end_unix_ns - int((now_s - request.arrival_s) * 1e9),
            end_unix_ns=end_unix_ns,
            attributes=_attributes(request, now_s),
        )


def traced(observer: LifecycleObserver, otlp_endpoint: str | None) -> LifecycleObserver:
    """The observer, with spans sent to the endpoint if there is one."""
    sink = span_writer(otlp_endpoint)
    return observer if sink is None else RequestSpans(observer, sink)


def _attributes(request: Request, now_s: float) -> dict[str, str | int | float]:
    """What the span says. Times are seconds, and only of phases that began: up to the first step, from there to the
    first token of any sequence, from there to the end."""
    reasons = {sequence.finish_reason for sequence in request.sequences}
    found: dict[str, str | int | float] = {
        "quire.request_id": request.request_id,
        "quire.tenant": request.tenant,
        "quire.priority": request.priority,
        "quire.num_sequences": len(request.sequences),
        "quire.num_cached_tokens": request.num_cached_tokens,
        "quire.num_preemptions": sum(sequence.num_preemptions for sequence in request.sequences),
        "quire.finish_reasons": ",".join(
            sorted(reason.name.lower() for reason in reasons if reason is not None)
        ),
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.output_tokens": sum(len(sequence.output_token_ids) for sequence in request.sequences),
    }
    scheduled_s = request.first_scheduled_s
    found["quire.queue_s"] = (now_s if scheduled_s is None else scheduled_s) - request.arrival_s
    if scheduled_s is None:
        return found
    starts = [sequence.first_token_s for sequence in request.sequences if sequence.first_token_s is not None]
    first_token_s = min(starts, default=now_s)
    found["quire.prefill_s"] = first_token_s - scheduled_s
    if starts:
        found["quire.decode_s"] = now_s - first_token_s
    return found
