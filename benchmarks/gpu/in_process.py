"""The same scheduler core and the same worker executor in one process, with no gRPC between: what messages cost.

The core plans as the scheduler's process does, with as many steps in flight, and its plans go straight to the executor.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from measure import Recorder
from processes import EngineOptions
from workloads import Request, Workload

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.request import Request as SchedulerRequest
from quire_scheduler.request import SamplingParams as SchedulerSampling
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import StepPlan as SchedulerPlan
from quire_scheduler.step import StepResult
from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings
from quire_worker.executor import ModelSource, PoolRequest
from quire_worker.step import NewSequence, SamplingParams, StepOutcome, StepPlan

_OWNER = "benchmark"


class InProcessEngine:
    """One core, one executor. `run` as EngineClient's."""

    def __init__(self, options: EngineOptions) -> None:
        self._executor = DeviceExecutor(
            DeviceExecutorSettings(
                device=options.device,
                attention=options.attention,
                load_format=options.load_format,
                quantization=options.quantization,
                kv_cache_dtype=options.kv_cache_dtype,
            )
        )
        model = self._executor.load(ModelSource(options.model, dtype=options.dtype), lambda progress: None)
        pool = self._executor.allocate(
            PoolRequest(
                max_num_seqs=options.max_num_seqs,
                max_tokens_per_step=options.max_num_batched_tokens,
                max_model_len=options.max_model_len,
                num_blocks=options.num_blocks,
            )
        )
        self.vocab_size = model.vocab_size
        self._core = SchedulerCore(
            SchedulerConfig(
                block_size=pool.block_size,
                max_num_seqs=pool.max_num_seqs,
                max_num_batched_tokens=pool.max_tokens_per_step,
                max_model_len=pool.max_model_len,
                max_waiting_tokens=1 << 22,
                max_steps_in_flight=options.max_steps_in_flight,
            )
        )
        self._core.worker_ready(pool.num_blocks)
        self._next_handle = 1

    @property
    def executor(self) -> DeviceExecutor:
        """The worker's part."""
        return self._executor

    async def run(self, workload: Workload) -> Recorder:
        """The warm-up, then the requests, all at once."""
        if workload.warm_up:
            await self._run(workload.warm_up)
        return await self._run(workload.requests)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()

    async def _run(self, requests: list[Request]) -> Recorder:
        first = self._next_handle
        self._next_handle += len(requests)
        recorder = Recorder(time.perf_counter())
        for index, request in enumerate(requests):
            sampling = SchedulerSampling(
                temperature=0.0, ignore_eos=True, max_tokens=request.num_output_tokens, seed=0
            )
            self._core.submit(
                SchedulerRequest(_OWNER, first + index, request.prompt, sampling), time.monotonic()
            )
        done = asyncio.get_running_loop().create_future()

        def deliver(outcome: StepOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                if not done.done():
                    done.set_exception(outcome)
                return
            deltas = self._apply(outcome).get(_OWNER)
            if deltas is not None:
                handles = [handle - first for handle in deltas.handles]
                recorder.add(time.perf_counter(), handles, deltas.num_tokens, outcome.sampled_at_unix_us)
            self._plan(deliver)
            if self._core.num_requests == 0 and self._core.num_steps_in_flight == 0:
                done.set_result(None)

        self._plan(deliver)
        await done
        return recorder

    def _apply(self, outcome: StepOutcome) -> dict[Any, Any]:
        result = StepResult(
            outcome.step_id, outcome.slots, outcome.token_ids, sampled_at_unix_us=outcome.sampled_at_unix_us
        )
        return self._core.apply(result, time.monotonic())

    def _plan(self, deliver: Any) -> None:
        while (plan := self._core.plan(time.monotonic())) is not None:
            self._executor.submit(_worker_plan(plan), deliver)


def _worker_plan(plan: SchedulerPlan) -> StepPlan:
    return StepPlan(
        step_id=plan.step_id,
        slots=list(plan.slots),
        num_new_tokens=list(plan.num_new_tokens),
        num_new_blocks=list(plan.num_new_blocks),
        new_block_ids=list(plan.new_block_ids),
        released_slots=list(plan.released_slots),
        copy_source_block_ids=list(plan.copy_source_block_ids),
        copy_target_block_ids=list(plan.copy_target_block_ids),
        new_sequences=[
            NewSequence(
                slot=sequence.slot,
                token_ids=list(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=list(sequence.block_ids),
                sampling=SamplingParams(temperature=0.0, ignore_eos=True),
                sequence_index=sequence.sequence_index,
            )
            for sequence in plan.new_sequences
        ],
    )
