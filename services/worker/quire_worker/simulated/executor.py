"""The simulated worker's executor: the runner behind a clock. No threads, no torch; at 0 ms it is as fast as Python."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from quire_worker.executor import (
    Deliver,
    LoadPhase,
    LoadProgress,
    ModelDescription,
    ModelSource,
    ModelTask,
    PoolDescription,
    PoolRequest,
)
from quire_worker.masks import MaskBox, MasksLost, Words
from quire_worker.simulated.runner import SimulatedRunner, TokenRange
from quire_worker.step import StepMask, StepOutcome, StepPlan, StepTimes


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """How long a step takes: a base, plus so much per prefill token and per decoding sequence, milliseconds."""

    step_base_ms: float = 0.0
    prefill_token_ms: float = 0.0
    decode_sequence_ms: float = 0.0

    def step_s(self, plan: StepPlan) -> float:
        """Seconds that the step takes; rows with one token count as decodes."""
        num_decodes = plan.num_new_tokens.count(1)
        num_prefill_tokens = sum(plan.num_new_tokens) - num_decodes
        return 1e-3 * (
            self.step_base_ms
            + self.prefill_token_ms * num_prefill_tokens
            + self.decode_sequence_ms * num_decodes
        )

    @property
    def is_zero(self) -> bool:
        """Whether steps take no time."""
        return not (self.step_base_ms or self.prefill_token_ms or self.decode_sequence_ms)


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """What the simulation pretends to be."""

    served_model_name: str = "simulated"
    vocab_size: int = 49152
    eos_token_ids: tuple[int, ...] = (2,)
    max_model_len: int = 8192
    num_blocks: int = 16384
    load_s: float = 0.0
    block_bytes: int = 0
    #: Values of an embedding; 0: it makes none.
    embedding_size: int = 64
    latency: LatencyModel = LatencyModel()
    tokens: TokenRange = field(default_factory=TokenRange)


class SimulatedExecutor:
    """Runs plans on the event loop; a step's outcome is delivered when the latency model says it is done."""

    device = "simulated"

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model
        self._latency = model.latency
        self._is_instant = model.latency.is_zero
        self._runner: SimulatedRunner | None = None
        # Outcomes whose time has not come, in order; when the last of them is due.
        self._due: deque[tuple[float, StepOutcome | Exception, Deliver]] = deque()
        self._busy_until = 0.0
        # Plans that wait for masks, and those behind them; when each came.
        self._waiting: deque[tuple[StepPlan, Deliver, float]] = deque()
        self._masks = MaskBox()
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None

    def load(self, source: ModelSource, report: Callable[[LoadProgress], None]) -> ModelDescription:
        """Pretend to load for `load_s` seconds; the path is not looked at."""
        num_reports = 10
        for done in range(num_reports):
            report(LoadProgress(LoadPhase.WEIGHTS, done, num_reports))
            time.sleep(self._model.load_s / num_reports)
        model = self._model
        name = source.served_model_name or model.served_model_name
        identity = f"simulated {name} {model.vocab_size}"
        return ModelDescription(
            id=name,
            architecture="Simulated",
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            dtype="float32",
            num_parameters=0,
            created_unix_s=int(time.time()),
            fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
            tasks=tuple(ModelTask) if model.embedding_size else (ModelTask.GENERATE,),
            embedding_size=model.embedding_size,
            labels=("simulated",) if model.embedding_size else (),
        )

    def allocate(self, request: PoolRequest) -> PoolDescription:
        """Make the slot tables."""
        block_size = request.block_size or 16
        max_num_seqs = request.max_num_seqs or 256
        pool = PoolDescription(
            num_blocks=request.num_blocks or self._model.num_blocks,
            block_size=block_size,
            block_bytes=self._model.block_bytes,
            max_num_seqs=max_num_seqs,
            max_tokens_per_step=request.max_tokens_per_step or max(2048, max_num_seqs),
            max_model_len=min(request.max_model_len or self._model.max_model_len, self._model.max_model_len),
        )
        if pool.num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2, got {pool.num_blocks}")
        self._runner = SimulatedRunner(
            pool, self._model.tokens, self._model.vocab_size, self._model.embedding_size
        )
        return pool

    def submit(self, plan: StepPlan, deliver: Deliver) -> None:
        """Run the plan at once, or when its masks are there; deliver at once or when its time has passed."""
        if not plan.masked_slots and not self._waiting:
            self._run(plan, deliver, None, None)
            return
        self._waiting.append((plan, deliver, asyncio.get_running_loop().time()))
        self._run_waiting()

    def mask(self, mask: StepMask) -> None:
        """See Executor."""
        self._masks.put(mask)
        self._run_waiting()

    def _run_waiting(self) -> None:
        while self._waiting:
            plan, deliver, submitted = self._waiting[0]
            masks = self._masks.try_take(plan.step_id, plan.masked_slots) if plan.masked_slots else None
            if plan.masked_slots and masks is None:
                return
            self._waiting.popleft()
            self._run(plan, deliver, masks, submitted)

    def _run(
        self, plan: StepPlan, deliver: Deliver, masks: Mapping[int, Words] | None, submitted: float | None
    ) -> None:
        """submitted: when the plan came, if that was before now; its forward pass began then."""
        assert self._runner is not None, "submit before allocate"
        started = time.perf_counter_ns()
        outcome: StepOutcome | Exception
        try:
            outcome = self._runner.execute(plan, masks)
        except Exception as error:  # noqa: BLE001 - delivered to whoever submitted
            outcome = error
        sample_us = (time.perf_counter_ns() - started) // 1000
        if self._is_instant:
            deliver(_stamped(outcome, StepTimes(sample_us=sample_us)))
            return
        now = asyncio.get_running_loop().time()
        began = now if submitted is None else submitted
        idle_us = int(max(0.0, began - self._busy_until) * 1e6) if self._busy_until else 0
        step_s = self._latency.step_s(plan)
        computed = max(began, self._busy_until) + step_s
        self._busy_until = max(computed, now)
        if isinstance(outcome, StepOutcome):
            times = StepTimes(
                forward_us=int(step_s * 1e6),
                sample_us=sample_us,
                idle_us=idle_us,
                mask_wait_us=int((self._busy_until - computed) * 1e6) if masks else 0,
            )
            outcome = replace(outcome, times=times)
        self._due.append((self._busy_until, outcome, deliver))
        if self._timer is None:
            self._arm()

    async def reset(self) -> None:
        """Forget every sequence; steps under way are delivered first, those that wait for masks have failed."""
        while self._waiting:
            plan, deliver, _ = self._waiting.popleft()
            deliver(MasksLost(f"step {plan.step_id}: the stream ended before its masks came"))
        self._masks.reset()
        if self._due:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._runner is not None:
            self._runner.reset()

    def unload(self) -> None:
        """Forget the slot tables."""
        self._runner = None

    def close(self) -> None:
        """Deliver nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._due[0][0], self._deliver_due)

    def _deliver_due(self) -> None:
        self._timer = None
        # Timers may fire a little early: the loop's clock has a resolution.
        now = asyncio.get_running_loop().time() + 1e-3
        while self._due and self._due[0][0] <= now:
            _, outcome, deliver = self._due.popleft()
            deliver(_stamped(outcome, None))
        if self._due:
            self._arm()
        elif self._drained is not None:
            self._drained.set_result(None)
            self._drained = None


def _stamped(outcome: StepOutcome | Exception, times: StepTimes | None) -> StepOutcome | Exception:
    """The outcome with the wall clock of its delivery."""
    if isinstance(outcome, Exception):
        return outcome
    sampled_at_unix_us = time.time_ns() // 1000
    return replace(outcome, sampled_at_unix_us=sampled_at_unix_us, times=times or outcome.times)
