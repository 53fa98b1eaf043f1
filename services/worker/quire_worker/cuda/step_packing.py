"""Packs a plan for the device: the head that every step has, and what only some have behind it.

The head, int32, M the largest batch: [0] rows, [1] tokens, [2] leading rows of one token, [3..7] reserved; then columns
of M values each: slots (-1 pads), num_new_tokens, query start of the row, num_new_blocks, offset of the row's blocks;
then the new blocks' ids; then the list of attention tiles (how many, then sequence << 16 | tile), empty where it would
be too long for a captured step; then the prefix that decode rows share: its tokens, how many rows, these rows (M), and
by row how many of its tokens are shared (M).
Behind it: records of sequences to be placed (slot, num_tokens, num_computed, num_blocks, token_offset, block_offset, 0,
0; offsets from the first record) with their data, block copies, and blocks that belong at another entry of their table
than the next computed token's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.cuda.columns import StepColumns
from quire_worker.cuda.shared_prefix import SharedPrefix
from quire_worker.cuda.staging import Staging
from quire_worker.cuda.state import (
    HEADER_SIZE,
    NUM_COLUMNS,
    NUM_DECODES,
    NUM_SEQS,
    NUM_TOKENS,
    RECORD_SIZE,
)
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams, StepPlan

# Blocks that one head can append.
_BLOCKS_PER_ROW = 2
# Tiles of attention that the head has room for, beside one for every row.
_MAX_WHOLE_TILES = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """Sequences to be placed: `packed` begins with their records. The sampling columns are by sequence, too.

    slots int32 [N]; floats float32 [3, N]: temperature, top_p, min_p; integers int32 [2, N]: top_k, sequence_index;
    seeds int64 [N].
    """

    packed: torch.Tensor
    num_sequences: int
    max_tokens: int
    max_blocks: int
    slots: torch.Tensor
    floats: torch.Tensor
    integers: torch.Tensor
    seeds: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedStep:
    """What was packed, as views on the device that are valid once `Staging.send` was called.

    sample_slots, sample_rows int32 [R]: the rows that sample, by slot and by the place of their last token.
    """

    placement: Placement | None
    copy_sources: torch.Tensor | None
    copy_targets: torch.Tensor | None
    far_blocks: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    sample_slots: torch.Tensor | None
    sample_rows: torch.Tensor | None


def head_size(limits: SlotLimits) -> int:
    """int32 values of the head."""
    return prefix_start(limits) + prefix_size(limits)


def tiles_start(limits: SlotLimits) -> int:
    """Where in the head the list of tiles begins."""
    return HEADER_SIZE + (NUM_COLUMNS + _BLOCKS_PER_ROW) * limits.max_num_seqs


def capacity(limits: SlotLimits) -> int:
    """int32 values of the largest plan: every slot placed anew at its longest."""
    sequence = RECORD_SIZE + limits.max_model_len + limits.max_blocks_per_seq + 16
    return head_size(limits) + limits.max_num_seqs * (sequence + limits.max_blocks_per_seq + 4) + 64


def prefix_start(limits: SlotLimits) -> int:
    """Where in the head the shared prefix begins."""
    return tiles_start(limits) + limits.max_num_seqs + _MAX_WHOLE_TILES + 1


def prefix_size(limits: SlotLimits) -> int:
    """int32 values of the shared prefix."""
    return 2 + 2 * limits.max_num_seqs


class StepPacker:
    """Packs plans into a staging area."""

    def __init__(self, staging: Staging, limits: SlotLimits, tile_tokens: int) -> None:
        """tile_tokens: how many tokens an attention tile has; 0: tiles are not listed."""
        self._staging = staging
        self._limits = limits
        self._tile_tokens = tile_tokens

    def pack(
        self,
        plan: StepPlan,
        columns: StepColumns,
        device_sampling: Sequence[SamplingParams],
        *,
        is_graph: bool,
        prefix: SharedPrefix | None = None,
    ) -> PackedStep:
        """Pack a plan. device_sampling: of each new sequence, as the device is to sample it. is_graph: a captured
        graph runs the step, and it finds the sampling rows by itself. prefix: what a step of such a graph shares."""
        staging, far_rows = self._staging, self._far_rows(columns)
        self._pack_head(columns, far_rows)
        if prefix is not None:
            self._pack_prefix(prefix)
        samples = np.flatnonzero(columns.samples)
        ends = columns.query_starts + columns.counts
        return PackedStep(
            placement=self._pack_placement(plan.new_sequences, device_sampling)
            if plan.new_sequences
            else None,
            copy_sources=staging.add(plan.copy_source_block_ids) if plan.copy_source_block_ids else None,
            copy_targets=staging.add(plan.copy_target_block_ids) if plan.copy_source_block_ids else None,
            far_blocks=self._pack_far_blocks(columns, far_rows) if len(far_rows) else None,
            sample_slots=None if is_graph else staging.add(columns.slots[samples]),
            sample_rows=None if is_graph else staging.add(ends[samples] - 1),
        )

    def _far_rows(self, columns: StepColumns) -> NDArray[np.int64]:
        """Rows whose new blocks the head can't hold, or that belong elsewhere than at the next computed token."""
        if not len(columns.new_block_ids):
            return np.zeros(0, dtype=np.int64)
        size = self._limits.block_size
        # The host's tables hold the new blocks already.
        next_entries = -(-columns.starts // size)
        wrong = (columns.num_new_blocks > 0) & (columns.first_entries != next_entries)
        if len(columns.new_block_ids) > _BLOCKS_PER_ROW * self._limits.max_num_seqs:
            wrong = columns.num_new_blocks > 0
        return np.flatnonzero(wrong)

    def _pack_head(self, columns: StepColumns, far_rows: NDArray[np.int64]) -> None:
        head, most, rows = self._staging.head, self._limits.max_num_seqs, len(columns.slots)
        head[NUM_SEQS], head[NUM_TOKENS] = rows, columns.num_tokens
        head[NUM_DECODES] = columns.num_leading_decodes
        body = head[HEADER_SIZE : HEADER_SIZE + NUM_COLUMNS * most].reshape(NUM_COLUMNS, most)
        body[0, :rows], body[0, rows:] = columns.slots, -1
        body[1, :rows], body[1, rows:] = columns.counts, 1
        body[2, :rows] = columns.query_starts
        body[2, rows:] = np.arange(columns.num_tokens, columns.num_tokens + most - rows)
        body[3, :rows], body[3, rows:] = columns.num_new_blocks, 0
        body[3, far_rows] = 0
        body[4, :rows], body[4, rows:] = columns.block_offsets, 0
        start = tiles_start(self._limits)
        room = head[HEADER_SIZE + NUM_COLUMNS * most : start]
        count = min(len(columns.new_block_ids), len(room))
        room[:count] = columns.new_block_ids[:count]
        self._pack_tiles(columns, head[start : prefix_start(self._limits)])

    def _pack_tiles(self, columns: StepColumns, room: NDArray[np.int32]) -> None:
        """Count, then sequence << 16 | tile; long runs' last tiles, which see most keys, come first."""
        room[0] = 0
        first = columns.num_leading_decodes
        if not self._tile_tokens or first == len(columns.counts):
            return
        each = -(-columns.counts[first:] // self._tile_tokens)
        total = int(each.sum())
        if total < len(room):
            rows = np.repeat(np.arange(first, len(columns.counts)), each)
            tiles = np.arange(total) - np.repeat(np.cumsum(each) - each, each)
            room[0], room[1 : total + 1] = total, (rows << 16 | tiles)[::-1]

    def _pack_prefix(self, prefix: SharedPrefix) -> None:
        start, most = prefix_start(self._limits), self._limits.max_num_seqs
        room = self._staging.head[start : start + prefix_size(self._limits)]
        room[0], room[1] = prefix.num_tokens, len(prefix.rows)
        room[2 : 2 + len(prefix.rows)] = prefix.rows
        room[2 + most :] = 0
        room[2 + most + prefix.rows] = prefix.num_tokens

    def _pack_far_blocks(
        self, columns: StepColumns, far_rows: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        counts = columns.num_new_blocks[far_rows]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(columns.first_entries[far_rows], counts) + offsets
        ids = columns.new_block_ids[np.repeat(columns.block_offsets[far_rows], counts) + offsets]
        add = self._staging.add
        return add(np.repeat(columns.slots[far_rows], counts)), add(entries), add(ids)

    def _pack_placement(
        self, sequences: Sequence[NewSequence], sampling: Sequence[SamplingParams]
    ) -> Placement:
        add, records, data = self._staging.add, [], []
        offset = len(sequences) * RECORD_SIZE
        for sequence in sequences:
            tokens, blocks = len(sequence.token_ids), len(sequence.block_ids)
            row = (sequence.slot, tokens, sequence.num_computed_tokens, blocks, offset, offset + tokens, 0, 0)
            records.append(np.array(row))
            data += [np.asarray(sequence.token_ids), np.asarray(sequence.block_ids)]
            offset += tokens + blocks
        floats = np.array([[p.temperature, p.top_p, p.min_p] for p in sampling], dtype=np.float32).T
        integers = [[p.top_k for p in sampling], [sequence.sequence_index for sequence in sequences]]
        seeds = np.array([p.seed for p in sampling], dtype=np.uint64)
        return Placement(
            packed=add(np.concatenate([*records, *data]).astype(np.int32)),
            num_sequences=len(sequences),
            max_tokens=max(len(sequence.token_ids) for sequence in sequences),
            max_blocks=max(len(sequence.block_ids) for sequence in sequences),
            slots=add([sequence.slot for sequence in sequences]),
            floats=add(np.ascontiguousarray(floats).view(np.int32)).view(torch.float32).view(3, -1),
            integers=add(np.array(integers)).view(2, -1),
            seeds=add(seeds.view(np.int32)).view(torch.int64),
        )
