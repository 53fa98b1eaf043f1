"""Per-slot tables: what the worker knows of each sequence between steps. Plain arrays; knows no model.

Row = slot. The tables are on the host: positions, lengths and block ids of a step are known there before the device
has run. Tokens known: prompt and output so far, the sampled ones appended as soon as they are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_worker.step import NewSequence, SamplingParams


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """Sizes of the tables."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int

    @property
    def max_blocks_per_seq(self) -> int:
        """Entries of a block table."""
        return -(-self.max_model_len // self.block_size)


class SlotTables:
    """State of every sequence by slot. Every method checks what the plan says and raises ValueError if it can't be."""

    def __init__(self, limits: SlotLimits) -> None:
        rows = limits.max_num_seqs
        self.limits = limits
        self.token_ids: NDArray[np.int32] = np.zeros((rows, limits.max_model_len + 1), dtype=np.int32)
        self.num_tokens = np.zeros(rows, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(rows, dtype=np.int64)
        self.num_computed_tokens = np.zeros(rows, dtype=np.int64)
        self.block_table: NDArray[np.int32] = np.zeros((rows, limits.max_blocks_per_seq), dtype=np.int32)
        self.num_blocks = np.zeros(rows, dtype=np.int64)
        self.sequences: list[NewSequence | None] = [None] * rows
        # Sequences whose answer is a vector; they never sample.
        self.is_pooled = np.zeros(rows, dtype=bool)
        self.num_pooled = 0

    def sampling(self, slot: int) -> SamplingParams:
        """Sampling parameters of an occupied slot."""
        sequence = self.sequences[slot]
        assert sequence is not None
        return sequence.sampling

    def release(self, slot: int) -> None:
        """Forget a slot's sequence. Releasing an empty slot is an error of the plan."""
        if self.sequences[self._checked(slot)] is None:
            raise ValueError(f"slot {slot} is released but empty")
        self.sequences[slot] = None
        if self.num_pooled and self.is_pooled[slot]:
            self.is_pooled[slot] = False
            self.num_pooled -= 1

    def release_all(self) -> None:
        """Forget every sequence."""
        self.sequences = [None] * self.limits.max_num_seqs
        self.is_pooled[:] = False
        self.num_pooled = 0

    def place(self, sequence: NewSequence) -> None:
        """Put a sequence into its slot."""
        slot = self._checked(sequence.slot)
        if self.sequences[slot] is not None:
            raise ValueError(f"slot {slot} is still occupied")
        count = len(sequence.token_ids)
        if not 1 <= count <= self.limits.max_model_len:
            raise ValueError(f"slot {slot}: {count} tokens are not within 1..{self.limits.max_model_len}")
        if not 0 <= sequence.num_computed_tokens < count or not 1 <= sequence.num_prompt_tokens <= count:
            raise ValueError(
                f"slot {slot}: num_computed_tokens {sequence.num_computed_tokens} and num_prompt_tokens "
                f"{sequence.num_prompt_tokens} do not fit {count} tokens"
            )
        self.token_ids[slot, :count] = sequence.token_ids
        self.num_tokens[slot] = count
        self.num_prompt_tokens[slot] = sequence.num_prompt_tokens
        self.num_computed_tokens[slot] = sequence.num_computed_tokens
        self.num_blocks[slot] = 0
        self.sequences[slot] = sequence
        if sequence.pooling is not None:
            self.is_pooled[slot] = True
            self.num_pooled += 1
        self.append_blocks(slot, np.asarray(sequence.block_ids, dtype=np.int32))

    def append_blocks(self, slot: int, block_ids: NDArray[np.int32]) -> None:
        """Lengthen a slot's block table."""
        start = int(self.num_blocks[slot])
        end = start + len(block_ids)
        if end > self.block_table.shape[1]:
            raise ValueError(f"slot {slot}: {end} blocks, a table holds {self.block_table.shape[1]}")
        if len(block_ids) and not (block_ids.min() >= 1 and block_ids.max() < self.limits.num_blocks):
            raise ValueError(f"slot {slot}: a block id is outside 1..{self.limits.num_blocks - 1}")
        self.block_table[slot, start:end] = block_ids
        self.num_blocks[slot] = end

    def append_tokens(self, slots: NDArray[np.int64], token_ids: NDArray[np.int32]) -> None:
        """Append one sampled token to each slot's known tokens."""
        self.token_ids[slots, self.num_tokens[slots]] = token_ids
        self.num_tokens[slots] += 1

    def _checked(self, slot: int) -> int:
        if not 0 <= slot < self.limits.max_num_seqs:
            raise ValueError(f"slot {slot} is outside 0..{self.limits.max_num_seqs - 1}")
        return slot
