"""ModelRunner: carries out one plan: release, copy, place, build inputs, forward, sample, append. Decides nothing.

Knows neither gRPC nor how a forward pass is computed.
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.input_batch import InputBatch
from quire_worker.kv_cache import BlockPool
from quire_worker.masks import MaskBox
from quire_worker.pooling.collector import PoolingCollector
from quire_worker.sampling.sampler import Sampler
from quire_worker.slots import SlotTables
from quire_worker.step import StepOutcome, StepPlan, StepTimes


class Forward(Protocol):
    """A decoder bound to an InputBatch and a BlockPool."""

    def run(self) -> None:
        """Compute the step that the batch describes."""
        ...

    def greedy(self) -> NDArray[np.int32]:
        """Of each sampling row, the token id with the largest logit."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """Raw logits of the sampling rows, [num_samples, vocab_size] on the host."""
        ...

    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of any rows of the step just run, at most max_seqs."""
        ...

    def hidden_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Hidden states of any rows of the step just run, behind the final norm: [num_rows, hidden_size]."""
        ...


class ModelRunner:
    """Runs plans, one at a time, on one thread."""

    def __init__(
        self,
        forward: Forward,
        tables: SlotTables,
        batch: InputBatch,
        pool: BlockPool,
        sampler: Sampler,
        collector: PoolingCollector | None = None,
    ) -> None:
        """collector: None for a model that is not served for vectors."""
        # Where masks of plans with masked slots arrive.
        self.masks = MaskBox()
        self._forward = forward
        self._tables = tables
        self._batch = batch
        self._pool = pool
        self._sampler = sampler
        self._collector = collector or PoolingCollector(None)

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one step to its end. ValueError: a plan that contradicts what the worker knows; the slots are then
        to be reset."""
        started = time.perf_counter_ns()
        self._apply(plan)
        batch = self._batch
        batch.fill(self._tables, plan.slots, plan.num_new_tokens)
        prepared = time.perf_counter_ns()
        self._forward.run()
        computed = time.perf_counter_ns()
        pooled = None
        if self._tables.num_pooled:
            # Before sampling: reading logits of other rows may move what a step left behind.
            pooled = self._collector.collect(batch, self._tables, self._forward)
        masks, mask_wait_us = (
            self.masks.wait(plan.step_id, plan.masked_slots) if plan.masked_slots else (None, 0)
        )
        chosen = self._sampler.sample(batch.sample_slots, self._forward, masks)
        self._tables.append_tokens(batch.sample_slots, chosen.token_ids)
        prompt_logprobs = self._sampler.prompt_logprobs(batch, self._forward)
        sampled = time.perf_counter_ns()
        return StepOutcome(
            step_id=plan.step_id,
            slots=batch.sample_slots.tolist(),
            token_ids=chosen.token_ids.tolist(),
            logprobs=chosen.logprobs,
            prompt_logprobs=prompt_logprobs,
            pooled=pooled,
            times=StepTimes(
                prepare_us=(prepared - started) // 1000,
                forward_us=(computed - prepared) // 1000,
                sample_us=(sampled - computed) // 1000 - mask_wait_us,
                mask_wait_us=mask_wait_us,
            ),
            sampled_at_unix_us=time.time_ns() // 1000,
        )

    def reset(self) -> None:
        """Forget every sequence; blocks keep their content."""
        self._tables.release_all()
        self._sampler.forget_all()
        self.masks.reset()

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            if self._tables.num_pooled:
                self._collector.forget(slot)
            self._tables.release(slot)
            self._sampler.forget(slot)
        self._pool.copy_blocks(plan.copy_source_block_ids, plan.copy_target_block_ids)
        for sequence in plan.new_sequences:
            self._tables.place(sequence)
            if sequence.pooling is None:
                self._sampler.admit(sequence)
            else:
                self._collector.admit(sequence)
        if len(plan.num_new_blocks):
            self._append_blocks(plan)

    def _append_blocks(self, plan: StepPlan) -> None:
        if len(plan.num_new_blocks) != len(plan.slots) or sum(plan.num_new_blocks) != len(plan.new_block_ids):
            raise ValueError(
                f"{len(plan.num_new_blocks)} block counts of {sum(plan.num_new_blocks)} blocks in all for "
                f"{len(plan.slots)} slots and {len(plan.new_block_ids)} block ids"
            )
        start = 0
        block_ids = np.asarray(plan.new_block_ids, dtype=np.int32)
        for slot, count in zip(plan.slots, plan.num_new_blocks, strict=True):
            if count:
                self._tables.append_blocks(slot, block_ids[start : start + count])
                start += count
