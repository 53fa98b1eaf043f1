"""Lets waiting sequences in: finds what is cached, pins it, allocates the rest; decides nothing about running ones.

An admitted sequence gets the blocks of all its known tokens at once, so that a prefill, once begun, never waits for
memory in its middle.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire_scheduler.block_pool import BlockPool
from quire_scheduler.config import SchedulerConfig
from quire_scheduler.draft import Draft
from quire_scheduler.prefix_cache import PrefixCache
from quire_scheduler.queue import WaitingQueue
from quire_scheduler.request import Sequence, SequenceStatus
from quire_scheduler.retirement import Retirement
from quire_scheduler.running import RunningSet
from quire_scheduler.stats import SchedulerStats
from quire_scheduler.step import NewSequence


@dataclass(slots=True)
class Placement:
    """Where a sequence's leading tokens already are."""

    shared_block_ids: list[int]
    num_computed_tokens: int
    # It computes its prompt's log-probabilities, so nothing of it may come from elsewhere.
    scores_prompt: bool = False
    # Block whose content must be copied to the first own block: the tail of a sibling's prompt.
    copy_source_block_id: int | None = None
    source: Sequence | None = None


class Admission:
    """Admits from the head of the queue, without skipping, while slots, budget and blocks allow."""

    def __init__(
        self,
        config: SchedulerConfig,
        queue: WaitingQueue,
        running: RunningSet,
        pool: BlockPool,
        cache: PrefixCache,
        retirement: Retirement,
        stats: SchedulerStats,
    ) -> None:
        self._config = config
        self._queue = queue
        self._running = running
        self._pool = pool
        self._cache = cache
        self._retirement = retirement
        self._stats = stats

    def admit(self, draft: Draft, budget: int) -> int:
        """Adds rows of newly admitted sequences to the draft; answers the budget left."""
        while budget > 0 and self._running.has_free_slot:
            sequence = self._queue.peek()
            if sequence is None:
                break
            if sequence.num_tokens > sequence.plan_limit:
                # The pool has become smaller than the sequence since it was accepted.
                draft.misfits.append(sequence)
                break
            # A preempted sequence must not come back while results of its earlier life may add to its tokens.
            if self._retirement.is_in_flight(sequence):
                break
            if not self._config.has_blocks and sequence.num_tokens > budget:
                # It is computed whole, in a step with room for it.
                break
            placement = self._locate(sequence)
            if not self._fits(sequence, placement):
                break
            budget -= self._start(sequence, placement, draft, budget)
        return budget

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        if not self._config.has_blocks:
            return 0
        return -(-num_tokens // self._config.block_size)

    def _locate(self, sequence: Sequence) -> Placement:
        if sequence.request.must_score_prompt(sequence):
            return Placement([], 0, scores_prompt=True)
        source = sequence.request.fork_source
        num_prompt = len(sequence.request.prompt_token_ids)
        if (
            source is not None
            and source is not sequence
            and source.status is SequenceStatus.RUNNING
            # Its prompt is computed by steps before this one: what this step computes can't be copied in it.
            and source not in self._running.prefilling
        ):
            return self._fork(source, num_prompt)
        hits = self._cache.find(sequence)
        return Placement(hits, len(hits) * self._config.block_size)

    def _fork(self, source: Sequence, num_prompt: int) -> Placement:
        # The sibling computes the prompt's last token itself, to sample its own continuation: the block which holds
        # that token is written, so it is copied, never shared.
        num_shared, num_in_tail = divmod(num_prompt - 1, self._config.block_size)
        table = source.block_table
        tail = table[num_shared] if num_in_tail else None
        return Placement(table[:num_shared], num_prompt - 1, False, tail, source)

    def _fits(self, sequence: Sequence, placement: Placement) -> bool:
        num_new = self.num_blocks_for(sequence.num_tokens) - len(placement.shared_block_ids)
        num_taken = num_new + self._pool.num_unheld(placement.shared_block_ids)
        return num_taken + self._headroom(sequence) <= self._pool.num_free

    def _headroom(self, sequence: Sequence) -> int:
        """Blocks that must stay free after the admission, so that it is not undone at once.

        After its k-th preemption a sequence comes back only when every running one can grow by 2^(k-1) blocks more:
        they can't push it out again before they grew that much, so it is preempted at most about log2(blocks of the
        longest sequence) times by the sequences running now. Beside nothing that runs, no headroom is needed.
        """
        num_running = len(self._running)
        if num_running == 0:
            return 0
        headroom = int(self._config.watermark * self._pool.num_total)
        if sequence.num_preemptions:
            longest = self.num_blocks_for(self._config.max_model_len)
            headroom = max(headroom, num_running * min(1 << (sequence.num_preemptions - 1), longest))
        return headroom

    def _start(self, sequence: Sequence, placement: Placement, draft: Draft, budget: int) -> int:
        is_resumed = sequence.status is SequenceStatus.PREEMPTED
        self._queue.admit(sequence, draft.now_s)
        # Pinned before anything else is allocated: an allocation could evict an unheld hit.
        self._pool.pin(placement.shared_block_ids)
        shared = placement.shared_block_ids
        own = self._pool.allocate(self.num_blocks_for(sequence.num_tokens) - len(shared))
        sequence.block_table = shared + own
        sequence.num_planned_tokens = placement.num_computed_tokens
        sequence.num_registered_blocks = 0 if placement.source is not None else len(shared)
        sequence.plan_event = min(len(sequence.block_table) * self._config.block_size, sequence.plan_limit)
        sequence.move_to(SequenceStatus.RUNNING)
        self._running.start(sequence)
        if placement.copy_source_block_id is not None and placement.source is not None:
            draft.copy_source_block_ids.append(placement.copy_source_block_id)
            draft.copy_target_block_ids.append(own[0])
            # The copy reads the source's block in this step.
            placement.source.last_step_id = draft.step_id
        if placement.scores_prompt:
            sequence.request.prompt_scorer = sequence
        elif sequence.request.prompt_scorer is sequence:
            sequence.request.prompt_scorer = None
        self._describe(sequence, placement, draft)
        self._account(sequence, placement, draft, is_resumed)
        num_tokens = sequence.num_tokens - sequence.num_planned_tokens
        if self._config.has_blocks:
            num_tokens = min(num_tokens, budget, self._config.long_prefill_token_threshold or num_tokens)
        draft.add_row(sequence, num_tokens)
        return num_tokens

    def _describe(self, sequence: Sequence, placement: Placement, draft: Draft) -> None:
        request = sequence.request
        draft.new_sequences.append(
            NewSequence(
                slot=sequence.slot,
                token_ids=sequence.all_token_ids(),
                num_prompt_tokens=len(request.prompt_token_ids),
                num_computed_tokens=placement.num_computed_tokens,
                block_ids=sequence.block_table.copy(),
                sampling=request.sampling,
                sequence_index=sequence.index,
                adapter=request.adapter,
                request=request,
                scores_prompt=placement.scores_prompt,
            )
        )

    def _account(self, sequence: Sequence, placement: Placement, draft: Draft, is_resumed: bool) -> None:
        request = sequence.request
        stats = self._stats
        num_prompt = len(request.prompt_token_ids)
        if placement.source is None:
            stats.num_prefix_query_tokens += sequence.num_tokens
            stats.num_prefix_hit_tokens += placement.num_computed_tokens
        if request.first_scheduled_s is None:
            request.first_scheduled_s = draft.now_s
            request.num_cached_tokens = min(placement.num_computed_tokens, num_prompt)
            stats.num_prompt_tokens += num_prompt
            stats.num_cached_prompt_tokens += request.num_cached_tokens
            draft.started.append(request)
        if not is_resumed and placement.source is None and self._queue.policy.charges_tokens:
            # Recomputing after a preemption is not the tenant's doing.
            self._queue.policy.charge(request.tenant, sequence.num_tokens, 0)
