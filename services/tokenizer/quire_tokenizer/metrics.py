"""The tokenizer's Prometheus metrics: how much text goes through it, and how many streams are open."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class TokenizerMetrics:
    """The counters of one process. Each method is called once per call or batch, never per token."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"quire_tokenizer_{name}", text, registry=registry)

        self._encoded_chars = counter("encoded_chars", "Characters encoded.")
        self._encoded_tokens = counter("encoded_tokens", "Tokens that texts were encoded to.")
        self._detokenized_tokens = counter("detokenized_tokens", "Tokens of streams turned into text.")
        self._batches = counter("detokenize_batches", "Batches of the detokenisation streams.")
        self._failures = counter(
            "detokenize_failures", "Streams that failed: not open, or an unknown token id."
        )
        self._streams = Gauge("quire_tokenizer_open_streams", "Open streams.", registry=registry)

    def encoded(self, num_chars: int, num_tokens: int) -> None:
        """A text became tokens."""
        self._encoded_chars.inc(num_chars)
        self._encoded_tokens.inc(num_tokens)

    def detokenized(self, num_tokens: int, num_failures: int) -> None:
        """A batch of streams was applied."""
        self._batches.inc()
        self._detokenized_tokens.inc(num_tokens)
        if num_failures:
            self._failures.inc(num_failures)

    def streams_changed(self, change: int) -> None:
        """Streams were opened (positive) or closed (negative)."""
        self._streams.inc(change)
