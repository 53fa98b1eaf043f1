"""The gateway's metrics; README.md lists them. One job: name them. Updated by generation.py and the servicers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from quire_servicekit.metrics import SECONDS_BUCKETS

_TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


class GatewayMetrics:
    """All metrics of one gateway process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...] = SECONDS_BUCKETS) -> Histogram:
            return Histogram(f"quire_gateway_{name}", text, ("route",), buckets=buckets, registry=registry)

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"quire_gateway_{name}", text, labels, registry=registry)

        self.requests = counter("requests", "Client calls that ended.", ("route", "status"))
        self.sequences_finished = counter("sequences_finished", "Sequences that ended well.", ("reason",))
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of accepted requests.")
        self.cached_tokens = counter("cached_tokens", "Prompt tokens found in an engine's prefix cache.")
        self.output_tokens = counter("output_tokens", "Output tokens given to clients.")
        self.resumed_requests = counter("resumed_requests", "Requests moved to another engine after a loss.")
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "From the call's arrival to its first output."
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two writes of one stream, each of one or more tokens."
        )
        self.request_latency = histogram("request_latency_seconds", "From the call's arrival to its end.")
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a call.", _TOKEN_BUCKETS
        )
        self.request_output_tokens = histogram(
            "request_output_tokens", "Output tokens of a call.", _TOKEN_BUCKETS
        )
        self.in_flight = Gauge("quire_gateway_in_flight", "Sequences under way.", registry=registry)
        self.waiting_for_engine = Gauge(
            "quire_gateway_waiting_for_engine", "Requests that no engine can take now.", registry=registry
        )
        self.connected_schedulers = Gauge(
            "quire_gateway_connected_schedulers", "1 if an engine takes requests.", registry=registry
        )
