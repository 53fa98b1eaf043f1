"""Plans one step under one token budget: running sequences first (decodes, then prefills in chunks), then waiting ones.

Plain bookkeeping: no clock, no I/O, no idea what a policy orders by. Memory for decoding sequences is found by
preempting the policy's victim; a sequence whose block is about to come free with a step in flight stalls instead.
"""

from __future__ import annotations

from quire_scheduler.admission import Admission
from quire_scheduler.block_pool import BlockPool
from quire_scheduler.config import SchedulerConfig
from quire_scheduler.draft import Draft
from quire_scheduler.queue import WaitingQueue
from quire_scheduler.request import Sequence, SequenceStatus
from quire_scheduler.retirement import Retirement
from quire_scheduler.running import RunningSet, join_rows, make_rows
from quire_scheduler.stats import SchedulerStats
from quire_scheduler.step import SamplingRows, StepPlan


class Planner:
    """One engine's planner; owns no state but shares the engine's parts."""

    def __init__(
        self,
        config: SchedulerConfig,
        queue: WaitingQueue,
        running: RunningSet,
        pool: BlockPool,
        retirement: Retirement,
        admission: Admission,
        stats: SchedulerStats,
    ) -> None:
        self._config = config
        self._block_size = config.block_size
        self._queue = queue
        self._running = running
        self._pool = pool
        self._retirement = retirement
        self._admission = admission
        self._stats = stats

    def plan(self, step_id: int, now_s: float) -> tuple[StepPlan | None, list[Sequence]]:
        """The step, or None when nothing can run now; and the waiting sequences that can never run."""
        draft = Draft(step_id, now_s)
        rows, new_block_rows = self._plan_decodes(draft)
        budget = self._config.max_num_batched_tokens - len(rows.sequences)
        if self._running.prefilling:
            budget = self._plan_prefills(draft, budget)
        if not draft.is_short and len(self._queue):
            self._admission.admit(draft, budget)
        plan = self._assemble(draft, rows, new_block_rows)
        if plan is not None and draft.completed:
            # The rows that sample now are the batch of the next step, unless some of it stalls.
            self._complete(draft, None if draft.stalled else plan.sampling_rows)
        for sequence in draft.pooled:
            self._running.set_awaited(sequence)
        return plan, draft.misfits

    # Decodes.

    def _plan_decodes(self, draft: Draft) -> tuple[SamplingRows, list[int]]:
        """Advances every decoding sequence by one token; answers their rows, and the rows that got a block."""
        running = self._running
        due_rows = [
            row
            for row, sequence in enumerate(running.decoding)
            if sequence.num_planned_tokens == sequence.plan_event
        ]
        rows = running.decode_rows()
        if due_rows:
            self._prepare_due(draft, [running.decoding[row] for row in due_rows])
            rows = running.decode_rows()
            if draft.stalled:
                rows = make_rows([s for s in rows.sequences if s not in draft.stalled])
            if len(due_rows) != len(draft.new_blocks) or draft.num_preempted:
                # The batch has changed under the row numbers.
                due_rows = [row for row, s in enumerate(rows.sequences) if s in draft.new_blocks]
        step_id = draft.step_id
        for sequence in rows.sequences:
            sequence.num_planned_tokens += 1
            sequence.last_step_id = step_id
        return rows, due_rows

    def _prepare_due(self, draft: Draft, due: list[Sequence]) -> None:
        """Sees to sequences that reached a limit: the longest length, or the end of their last block."""
        if len(due) > self._pool.num_free:
            # Oldest first: it must not starve, and whoever got a block in this pass is never the victim of a later one.
            due.sort(key=self._queue.policy.victim_key)
        for sequence in due:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            if sequence.num_planned_tokens == sequence.plan_limit:
                self._running.set_finishing(sequence)
                continue
            if self._pool.num_free == 0 and not self._make_room(draft, sequence):
                continue
            self._grow(draft, sequence)

    def _grow(self, draft: Draft, sequence: Sequence) -> None:
        block_id = self._pool.allocate_one()
        table = sequence.block_table
        # Everything before the new block was filled by steps before this one.
        draft.filled.append((sequence, table, sequence.num_planned_tokens))
        table.append(block_id)
        sequence.plan_event = min(len(table) * self._block_size, sequence.plan_limit)
        draft.new_blocks[sequence] = block_id

    def _make_room(self, draft: Draft, sequence: Sequence) -> bool:
        """Tries to free a block for `sequence`; False if it can't run in this step (it stalls or was preempted)."""
        while self._pool.num_free == 0:
            if self._retirement.is_pending or self._running.finishing:
                draft.stalled.add(sequence)
                return False
            victim = max(self._running.preemptible(), key=self._queue.policy.victim_key)
            self._preempt(draft, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, draft: Draft, victim: Sequence) -> None:
        draft.num_preempted += 1
        self._stats.num_preemptions += 1
        victim.num_preemptions += 1
        self._running.remove(victim)
        victim.move_to(SequenceStatus.PREEMPTED)
        self._retirement.retire(victim)
        self._queue.push(victim)

    # Prefills.

    def _plan_prefills(self, draft: Draft, budget: int) -> int:
        threshold = self._config.long_prefill_token_threshold
        for sequence in self._running.prefilling:
            if budget == 0:
                break
            num_tokens = sequence.num_tokens - sequence.num_planned_tokens
            num_tokens = min(num_tokens, budget, threshold or num_tokens)
            draft.add_row(sequence, num_tokens)
            budget -= num_tokens
        return budget

    def _complete(self, draft: Draft, next_rows: SamplingRows | None) -> None:
        """Sequences whose prompt is now planned decode from the next step on, and their siblings may share it."""
        self._running.promote(draft.completed, next_rows)
        for source in draft.completed:
            request = source.request
            if request.n == 1 or request.fork_source is not source:
                continue
            for sibling in request.sequences:
                if sibling.status is SequenceStatus.HELD:
                    self._queue.release(sibling)

    # The plan.

    def _assemble(self, draft: Draft, rows: SamplingRows, new_block_rows: list[int]) -> StepPlan | None:
        num_rows = len(rows.sequences) + len(draft.slots)
        if num_rows == 0:
            return None
        num_new_blocks: list[int] = []
        if new_block_rows:
            num_new_blocks = [0] * num_rows
            for row in new_block_rows:
                num_new_blocks[row] = 1
        if self._queue.policy.charges_tokens:
            self._charge_decodes(rows)
        sampling_rows = join_rows(rows, draft.completed) if draft.completed else rows
        masked = _masked(sampling_rows) if sampling_rows.masked else []
        return StepPlan(
            step_id=draft.step_id,
            slots=rows.slots + draft.slots if draft.slots else rows.slots,
            num_new_tokens=rows.ones + draft.num_new_tokens if draft.slots else rows.ones,
            num_new_blocks=num_new_blocks,
            new_block_ids=[rows.sequences[row].block_table[-1] for row in new_block_rows],
            released_slots=self._running.take_released_slots(),
            copy_source_block_ids=draft.copy_source_block_ids,
            copy_target_block_ids=draft.copy_target_block_ids,
            new_sequences=draft.new_sequences,
            masked_slots=[sequence.slot for sequence in masked],
            masked=masked,
            num_tokens=len(rows.sequences) + sum(draft.num_new_tokens),
            sampling_rows=sampling_rows,
            pooled=draft.pooled,
            pooled_slots=[sequence.slot for sequence in draft.pooled],
            scored_prompts=draft.scored_prompts,
            started=draft.started,
            first_token=[s for s in draft.completed if s.first_token_s is None and not s.output_token_ids],
            filled=draft.filled,
        )

    def _charge_decodes(self, rows: SamplingRows) -> None:
        counts: dict[str, int] = {}
        for sequence in rows.sequences:
            tenant = sequence.request.tenant
            counts[tenant] = counts.get(tenant, 0) + 1
        for tenant, count in counts.items():
            self._queue.policy.charge(tenant, 0, count)


def _masked(rows: SamplingRows) -> list[Sequence]:
    """The sequences whose next token a mask must bound."""
    return [s for s in rows.masked if s.masker is not None and not s.masker.is_done]
