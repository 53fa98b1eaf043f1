"""A plan's rows as columns: which slots run, from which position on, how many tokens, and which of them sample.

Worked out on the host from what it knows of every slot, which is all but the sampled tokens themselves: so nothing here
waits for the device. Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_worker.slots import SlotTables
from quire_worker.step import StepPlan

Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepColumns:
    """One row per sequence of a step.

    starts[row] is the position of its first token, counts[row] how many there are, ends[row] = starts + counts;
    query_starts[row] is the row's first place among the step's tokens. samples: whether the row gives a token.
    num_new_blocks, block_offsets: how many of new_block_ids are appended to the row's table, from which on;
    first_entries: at which entry of the table the first of them belongs.
    """

    slots: Int64Array
    starts: Int64Array
    counts: Int64Array
    ends: Int64Array
    query_starts: Int64Array
    samples: NDArray[np.bool_]
    num_new_blocks: Int64Array
    block_offsets: Int64Array
    first_entries: Int64Array
    new_block_ids: Int64Array

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return int(self.counts.sum())

    @property
    def num_leading_decodes(self) -> int:
        """Rows of one token before the first row of several."""
        longer = np.flatnonzero(self.counts > 1)
        return int(longer[0]) if len(longer) else len(self.counts)


class ColumnBuilder:
    """Makes the columns of each plan and moves the host's tables on, as if the step had run."""

    def __init__(self, tables: SlotTables, max_tokens: int) -> None:
        self._tables = tables
        self._max_tokens = max_tokens

    def build(self, plan: StepPlan) -> StepColumns:
        """The columns of a plan whose releases and new sequences are in the tables already.

        ValueError: rows that can't run. The tables may then be half changed: reset them.
        """
        tables = self._tables
        slots = np.asarray(plan.slots, dtype=np.int64)
        counts = np.asarray(plan.num_new_tokens, dtype=np.int64)
        self._check_shape(slots, counts)
        num_new_blocks, ids = self._append_blocks(plan)
        starts = tables.num_computed_tokens[slots]
        ends = starts + counts
        known = tables.num_tokens[slots]
        self._check_rows(slots, counts, ends, known)
        samples = ends == known
        tables.num_computed_tokens[slots] = ends
        tables.num_tokens[slots] += samples
        return StepColumns(
            slots=slots,
            starts=starts,
            counts=counts,
            ends=ends,
            query_starts=np.cumsum(counts) - counts,
            samples=samples,
            num_new_blocks=num_new_blocks,
            block_offsets=np.cumsum(num_new_blocks) - num_new_blocks,
            first_entries=tables.num_blocks[slots] - num_new_blocks,
            new_block_ids=ids,
        )

    def _append_blocks(self, plan: StepPlan) -> tuple[Int64Array, Int64Array]:
        ids = np.asarray(plan.new_block_ids, dtype=np.int64)
        if not len(plan.num_new_blocks) and not len(ids):
            return np.zeros(len(plan.slots), dtype=np.int64), ids
        counts = np.asarray(plan.num_new_blocks, dtype=np.int64)
        if len(counts) != len(plan.slots) or counts.sum() != len(ids):
            raise ValueError(
                f"{len(counts)} block counts of {counts.sum()} blocks in all for {len(plan.slots)} slots and "
                f"{len(ids)} block ids"
            )
        first = 0
        for row in np.flatnonzero(counts).tolist():
            last = first + int(counts[row])
            self._tables.append_blocks(plan.slots[row], ids[first:last].astype(np.int32))
            first = last
        return counts, ids

    def _check_shape(self, slots: Int64Array, counts: Int64Array) -> None:
        limit = self._tables.limits.max_num_seqs
        if len(slots) != len(counts):
            raise ValueError(f"{len(slots)} slots with {len(counts)} token counts")
        total = int(counts.sum())
        if len(slots) > limit or total > self._max_tokens:
            raise ValueError(
                f"a step of {len(slots)} sequences and {total} tokens; limits are {limit} and {self._max_tokens}"
            )
        if len(slots) and (slots.min() < 0 or slots.max() >= limit or np.bincount(slots).max() > 1):
            raise ValueError(f"slots must be distinct and within 0..{limit - 1}")

    def _check_rows(self, slots: Int64Array, counts: Int64Array, ends: Int64Array, known: Int64Array) -> None:
        tables, limits = self._tables, self._tables.limits
        sequences = tables.sequences
        room = np.minimum(tables.num_blocks[slots] * limits.block_size, limits.max_model_len)
        wrong = (counts < 1) | (ends > known) | (ends > room)
        for slot in slots.tolist():
            if sequences[slot] is None:
                raise ValueError(f"slot {slot} runs but is empty")
        for row in np.flatnonzero(wrong).tolist():
            slot = int(slots[row])
            raise ValueError(
                f"slot {slot}: {counts[row]} new tokens up to {ends[row]}, but {known[row]} are known, "
                f"{limits.max_model_len} are possible and its blocks hold {room[row]}"
            )
