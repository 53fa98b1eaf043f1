"""The inputs of a forward pass, in buffers whose addresses never change: built from a plan's columns and the slots.

Legend: T tokens of the step, S sequences, R rows that sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.memory import zeros
from quire_worker.slots import SlotTables


class InputBatch:
    """One step's inputs.

    token_ids, positions [T] int32; slot_mapping [T] int64: block_id * block_size + offset; query_start_loc [S + 1]
    and seq_lens [S] int32; table_rows [S] int32: each sequence's row of the block tables (its slot); sample_rows [R]
    int32: the row among the T tokens whose logits give a token; sample_slots: the slots of those rows.
    num_tokens, num_seqs, num_samples: int64 [1] each, read by kernels.
    """

    def __init__(self, max_tokens: int, max_seqs: int) -> None:
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.token_ids = zeros(max_tokens, np.int32)
        self.positions = zeros(max_tokens, np.int32)
        self.slot_mapping = zeros(max_tokens, np.int64)
        self.query_start_loc = zeros(max_seqs + 1, np.int32)
        self.seq_lens = zeros(max_seqs, np.int32)
        self.table_rows = zeros(max_seqs, np.int32)
        self.sample_rows = zeros(max_seqs, np.int32)
        self.num_tokens = zeros(1, np.int64)
        self.num_seqs = zeros(1, np.int64)
        self.num_samples = zeros(1, np.int64)
        self.sample_slots: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.slots: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def fill(self, tables: SlotTables, slots: Sequence[int], num_new_tokens: Sequence[int]) -> None:
        """Set the inputs for these rows. ValueError, with nothing but the buffers changed, if they can't run."""
        rows = np.asarray(slots, dtype=np.int64)
        counts = np.asarray(num_new_tokens, dtype=np.int64)
        total = int(counts.sum())
        self._check(tables, rows, counts, total)
        starts = tables.num_computed_tokens[rows]
        ends = starts + counts
        if total == len(rows):
            row_of_token, positions = rows, starts
        else:
            row_of_token = np.repeat(rows, counts)
            before = np.cumsum(counts) - counts
            positions = np.arange(total) + np.repeat(starts - before, counts)
        self._fill_tokens(tables, row_of_token, positions, total)
        size = len(rows)
        self.query_start_loc[1 : size + 1] = np.cumsum(counts)
        self.seq_lens[:size] = ends
        self.table_rows[:size] = rows
        samples = np.flatnonzero(ends == tables.num_tokens[rows])
        if tables.num_pooled:
            samples = samples[~tables.is_pooled[rows[samples]]]
        self.sample_rows[: len(samples)] = self.query_start_loc[samples + 1] - 1
        self.sample_slots = rows[samples]
        self.slots = rows
        self.num_tokens[0], self.num_seqs[0], self.num_samples[0] = total, size, len(samples)
        tables.num_computed_tokens[rows] = ends

    def _fill_tokens(
        self, tables: SlotTables, rows: NDArray[np.int64], positions: NDArray[np.int64], total: int
    ) -> None:
        block_size = tables.limits.block_size
        self.token_ids[:total] = tables.token_ids[rows, positions]
        self.positions[:total] = positions
        blocks = tables.block_table[rows, positions // block_size].astype(np.int64)
        self.slot_mapping[:total] = blocks * block_size + positions % block_size

    def _check(
        self, tables: SlotTables, rows: NDArray[np.int64], counts: NDArray[np.int64], total: int
    ) -> None:
        if len(rows) != len(counts):
            raise ValueError(f"{len(rows)} slots with {len(counts)} token counts")
        if len(rows) > self.max_seqs or total > self.max_tokens:
            raise ValueError(
                f"a step of {len(rows)} sequences and {total} tokens; limits are {self.max_seqs} and {self.max_tokens}"
            )
        if len(rows) == 0:
            return
        if rows.min() < 0 or rows.max() >= tables.limits.max_num_seqs or len(np.unique(rows)) != len(rows):
            raise ValueError(f"slots must be distinct and within 0..{tables.limits.max_num_seqs - 1}")
        ends = tables.num_computed_tokens[rows] + counts
        for row, count, end in zip(rows.tolist(), counts.tolist(), ends.tolist(), strict=True):
            if tables.sequences[row] is None:
                raise ValueError(f"slot {row} runs but is empty")
            if count < 1 or end > tables.num_tokens[row]:
                raise ValueError(
                    f"slot {row}: {count} new tokens up to {end}, but {tables.num_tokens[row]} are known"
                )
            if end > tables.limits.max_model_len:
                raise ValueError(
                    f"slot {row}: {end} tokens, at most {tables.limits.max_model_len} are possible"
                )
            if end > tables.num_blocks[row] * tables.limits.block_size:
                raise ValueError(f"slot {row}: {end} tokens do not fit its {tables.num_blocks[row]} blocks")
