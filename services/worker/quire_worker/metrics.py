"""What the worker counts about its steps, for Prometheus; knows nothing of steps' contents but their times.

Names: quire_worker_steps_total, quire_worker_step_tokens_total, and histograms of seconds a step
quire_worker_{prepare,forward,sample,idle,mask_wait}_seconds (mask_wait: of masked steps only).
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from quire_worker.step import StepOutcome

_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class WorkerMetrics:
    """Counters of one worker."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = CollectorRegistry() if registry is None else registry
        self._num_steps = Counter("quire_worker_steps", "Steps run.", registry=registry)
        self._num_tokens = Counter("quire_worker_step_tokens", "Tokens sampled.", registry=registry)
        self._phases = {
            phase: Histogram(
                f"quire_worker_{phase}_seconds",
                f"Time of a step: {what}.",
                registry=registry,
                buckets=_BUCKETS,
            )
            for phase, what in (
                ("prepare", "preparing inputs"),
                ("forward", "the forward pass"),
                ("sample", "sampling"),
                ("idle", "waiting for a plan before it"),
                ("mask_wait", "waiting for masks before sampling"),
            )
        }

    def step_done(self, outcome: StepOutcome) -> None:
        """Count one step."""
        times = outcome.times
        self._num_steps.inc()
        self._num_tokens.inc(len(outcome.slots))
        for phase, micros in (
            ("prepare", times.prepare_us),
            ("forward", times.forward_us),
            ("sample", times.sample_us),
            ("idle", times.idle_us),
        ):
            self._phases[phase].observe(micros * 1e-6)
        if times.mask_wait_us:
            self._phases["mask_wait"].observe(times.mask_wait_us * 1e-6)
