"""The scheduler's Prometheus metrics: read from the engine when the page is asked for, so that a step pays nothing.

Names that routers read (the model-server protocol of inference gateways), under our prefix:
  gauges    quire_num_requests_running, quire_num_requests_waiting, quire_kv_cache_usage_perc (0 to 1),
            quire_cache_config_info{block_size, num_blocks}, quire_engine_healthy
  counters  quire_prompt_tokens_total, quire_generation_tokens_total, quire_prompt_tokens_cached_total,
            quire_prefix_cache_queries_total, quire_prefix_cache_hits_total (tokens), quire_num_preemptions_total,
            quire_request_success_total{finished_reason}, quire_requests_refused_total, quire_worker_losses_total
  histograms quire_time_to_first_token_seconds, quire_e2e_request_latency_seconds, quire_request_queue_time_seconds,
            quire_request_decode_time_seconds, quire_request_prompt_tokens, quire_request_generation_tokens,
            quire_step_seconds (from one result to the next while steps run)
  ours      quire_scheduler_steps_total, quire_scheduler_wasted_tokens_total,
            quire_scheduler_phase_seconds_total{phase}, quire_scheduler_frames_total, quire_scheduler_gateways,
            quire_num_waiting_tokens, quire_kv_blocks{state}, quire_scheduler_masked_tokens_total (a mask each),
            quire_scheduler_mask_seconds_total (making them, beside the loop), quire_scheduler_mask_wait_seconds_total
            (sampling waited for them), quire_scheduler_grammars_total{outcome}, quire_scheduler_grammar_seconds_total
Times of a request count from its arrival at the scheduler, on the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire_scheduler.request import Sequence
from quire_scheduler.stats import SchedulerStats
from quire_scheduler.timing import REQUEST_BUCKETS_S, STEP_BUCKETS_S, TOKEN_BUCKETS, Histogram

if TYPE_CHECKING:
    from quire_scheduler.engine import Engine


class RequestHistograms:
    """Is told by the scheduler of each sequence's turning points (a LifecycleObserver)."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(REQUEST_BUCKETS_S)
        self.latency = Histogram(REQUEST_BUCKETS_S)
        self.queue_time = Histogram(REQUEST_BUCKETS_S)
        self.decode_time = Histogram(REQUEST_BUCKETS_S)
        self.prompt_tokens = Histogram(TOKEN_BUCKETS)
        self.generation_tokens = Histogram(TOKEN_BUCKETS)
        self.step_time = Histogram(STEP_BUCKETS_S)

    def on_first_token(self, sequence: Sequence, now_s: float) -> None:
        """Its first token ever has arrived."""
        request = sequence.request
        self.time_to_first_token.add(now_s - request.arrival_s)
        if request.first_scheduled_s is not None and sequence is request.sequences[0]:
            self.queue_time.add(request.first_scheduled_s - request.arrival_s)

    def on_finished(self, sequence: Sequence, now_s: float) -> None:
        """It ended, for whatever reason."""
        request = sequence.request
        self.latency.add(now_s - request.arrival_s)
        self.prompt_tokens.add(len(request.prompt_token_ids))
        self.generation_tokens.add(len(sequence.output_token_ids))
        if sequence.first_token_s is not None:
            self.decode_time.add(now_s - sequence.first_token_s)


class EngineCollector(Collector):
    """Shows one engine. Called on the metrics thread; it only reads numbers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing to say before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        engine = self._engine
        yield GaugeMetricFamily(
            "quire_engine_healthy", "Whether steps can run now.", value=int(engine.is_ready)
        )
        yield GaugeMetricFamily("quire_scheduler_gateways", "Serve streams.", value=engine.num_gateways)
        yield from self._phases()
        yield from self._masks()
        if engine.core is not None:
            yield from self._load(engine.core.config.block_size)
            yield from self._totals(engine.core.stats)
            yield from self._histograms()

    def _load(self, block_size: int) -> Iterator[Metric]:
        load = self._engine.load()
        used = load.num_used_blocks / max(1, load.num_total_blocks)
        yield GaugeMetricFamily(
            "quire_num_requests_running", "Sequences in the batch.", value=load.num_running
        )
        yield GaugeMetricFamily("quire_num_requests_waiting", "Sequences that wait.", value=load.num_waiting)
        yield GaugeMetricFamily(
            "quire_num_waiting_tokens", "Tokens that wait.", value=load.num_waiting_tokens
        )
        yield GaugeMetricFamily("quire_kv_cache_usage_perc", "Share of blocks in use, 0 to 1.", value=used)
        blocks = GaugeMetricFamily(
            "quire_kv_blocks", "Blocks by state; cached ones are free or used.", labels=["state"]
        )
        blocks.add_metric(["total"], load.num_total_blocks)
        blocks.add_metric(["free"], load.num_free_blocks)
        blocks.add_metric(["used"], load.num_used_blocks)
        blocks.add_metric(["cached"], load.num_cached_blocks)
        yield blocks
        info = GaugeMetricFamily("quire_cache_config_info", "The pool.", labels=["block_size", "num_blocks"])
        info.add_metric([str(block_size), str(load.num_total_blocks)], 1)
        yield info

    def _totals(self, stats: SchedulerStats) -> Iterator[Metric]:
        for name, text, value in (
            ("quire_prompt_tokens", "Prompt tokens of started requests.", stats.num_prompt_tokens),
            (
                "quire_prompt_tokens_cached",
                "Those found in the prefix cache.",
                stats.num_cached_prompt_tokens,
            ),
            ("quire_generation_tokens", "Tokens generated.", stats.num_generated_tokens),
            ("quire_prefix_cache_queries", "Tokens looked up in the cache.", stats.num_prefix_query_tokens),
            ("quire_prefix_cache_hits", "Tokens found in it.", stats.num_prefix_hit_tokens),
            ("quire_num_preemptions", "Sequences preempted.", stats.num_preemptions),
            ("quire_requests_refused", "Requests refused: queue full.", stats.num_refused_requests),
            ("quire_worker_losses", "Times the worker was lost.", stats.num_worker_losses),
            ("quire_scheduler_steps", "Steps acknowledged.", stats.num_steps),
            ("quire_scheduler_wasted_tokens", "Sampled after their sequence's end.", stats.num_wasted_tokens),
        ):
            yield CounterMetricFamily(name, text, value=value)
        finished = CounterMetricFamily(
            "quire_request_success", "Ended sequences.", labels=["finished_reason"]
        )
        for reason, count in stats.num_finished.items():
            finished.add_metric([reason.name.lower()], count)
        yield finished

    def _phases(self) -> Iterator[Metric]:
        times = self._engine.times
        family = CounterMetricFamily(
            "quire_scheduler_phase_seconds", "The scheduler's own time in steps.", labels=["phase"]
        )
        family.add_metric(["plan"], times.plan_ns * 1e-9)
        family.add_metric(["apply"], times.apply_ns * 1e-9)
        family.add_metric(["plan_encode"], times.plan_encode_ns * 1e-9)
        family.add_metric(["result_decode"], times.result_decode_ns * 1e-9)
        family.add_metric(["frame_encode"], times.frame_encode_ns * 1e-9)
        yield family
        yield CounterMetricFamily(
            "quire_scheduler_frames", "Frames sent to gateways.", value=times.num_frames
        )

    def _masks(self) -> Iterator[Metric]:
        engine = self._engine
        masks, grammars = engine.constrained.mask_stats, engine.constrained.grammars.stats
        for name, text, value in (
            ("quire_scheduler_masked_tokens", "Masks made, one a token.", float(masks.num_rows)),
            ("quire_scheduler_mask_seconds", "Making masks, on their thread.", masks.mask_ns * 1e-9),
            (
                "quire_scheduler_mask_wait_seconds",
                "Sampling waited for masks.",
                engine.times.mask_wait_us * 1e-6,
            ),
            ("quire_scheduler_grammar_seconds", "Compiling constraints.", grammars.compile_ns * 1e-9),
        ):
            yield CounterMetricFamily(name, text, value=value)
        outcomes = CounterMetricFamily(
            "quire_scheduler_grammars", "Constraints by what became of them.", labels=["outcome"]
        )
        outcomes.add_metric(["compiled"], grammars.num_compiled)
        outcomes.add_metric(["refused"], grammars.num_refused)
        outcomes.add_metric(["cached"], grammars.num_cache_hits)
        yield outcomes

    def _histograms(self) -> Iterator[Metric]:
        histograms = self._engine.histograms
        for name, text, histogram in (
            ("quire_time_to_first_token_seconds", "Arrival to first token.", histograms.time_to_first_token),
            ("quire_e2e_request_latency_seconds", "Arrival to end.", histograms.latency),
            ("quire_request_queue_time_seconds", "Arrival to first step.", histograms.queue_time),
            ("quire_request_decode_time_seconds", "First token to end.", histograms.decode_time),
            ("quire_request_prompt_tokens", "Prompt tokens of ended sequences.", histograms.prompt_tokens),
            (
                "quire_request_generation_tokens",
                "Output tokens of ended sequences.",
                histograms.generation_tokens,
            ),
            ("quire_step_seconds", "From one result to the next.", histograms.step_time),
        ):
            family = HistogramMetricFamily(name, text)
            family.add_metric([], histogram.cumulative(), histogram.sum)
            yield family
