"""Gives blocks back, but only once every step that may touch them is acknowledged; knows nothing of planning.

Steps are acknowledged in order, so a sequence's blocks are safe once its last step is. Blocks filled by acknowledged
steps enter the prefix index just before they are released.
"""

from __future__ import annotations

from quire_scheduler.block_pool import BlockPool
from quire_scheduler.prefix_cache import PrefixCache
from quire_scheduler.request import Sequence


class Retirement:
    """Block tables of sequences that ended or were preempted, by the step that must be acknowledged first."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, acknowledged_step_id: int) -> None:
        self._pool = pool
        self._cache = cache
        # The latest step whose result was applied.
        self.acknowledged_step_id = acknowledged_step_id
        # Step id -> (sequence, its former block table, blocks already registered, tokens computed)
        self._deferred: dict[int, list[tuple[Sequence, list[int], int, int]]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether blocks will come free with a step that is in flight."""
        return bool(self._deferred)

    @property
    def num_pending_blocks(self) -> int:
        """Entries of the tables that wait (a shared block counts once per table)."""
        return sum(len(table) for entries in self._deferred.values() for _, table, _, _ in entries)

    def is_in_flight(self, sequence: Sequence) -> bool:
        """Whether a step that is not acknowledged may touch the sequence's blocks, former ones included."""
        return sequence.last_step_id > self.acknowledged_step_id

    def retire(self, sequence: Sequence) -> None:
        """Takes the sequence's blocks away; they come free now or with its last step."""
        entry = (
            sequence,
            sequence.block_table,
            sequence.num_registered_blocks,
            sequence.num_planned_tokens,
        )
        sequence.block_table = []
        sequence.num_registered_blocks = 0
        sequence.num_planned_tokens = 0
        sequence.plan_event = 0
        if self.is_in_flight(sequence):
            self._deferred.setdefault(sequence.last_step_id, []).append(entry)
        else:
            self._release(entry)

    def acknowledge(self, step_id: int) -> None:
        """The step's results are applied: what waited for it comes free."""
        self.acknowledged_step_id = step_id
        for entry in self._deferred.pop(step_id, ()):
            self._release(entry)

    def _release(self, entry: tuple[Sequence, list[int], int, int]) -> None:
        sequence, table, num_registered, num_tokens = entry
        self._cache.register(sequence, table, num_registered, num_tokens)
        self._pool.release(table)
