"""The simulated worker's slot tables and block pool: places, appends and releases sequences, and checks every plan.

A block's content is a number per token: a hash of the token and all tokens before it, as keys and values depend on
them. So a plan that shares a block too early, frees it too soon or copies the wrong one is found out here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire_worker.executor import PoolDescription
from quire_worker.simulated.tokens import sequence_key
from quire_worker.step import NewSequence

UInt64Array = NDArray[np.uint64]
IntArray = NDArray[np.int64]

# Odd, so that every power is invertible modulo 2**64.
_BASE = 0x9E3779B97F4A7C15


class MalformedStep(ValueError):
    """A plan that breaks the step contract; the message names the slot or block."""


class SlotTables:
    """What a worker knows of its sequences, one row per slot, as numpy columns."""

    def __init__(self, pool: PoolDescription) -> None:
        self.pool = pool
        num_slots = pool.max_num_seqs
        max_blocks = -(-pool.max_model_len // pool.block_size)
        self.is_active = np.zeros(num_slots, dtype=bool)
        self.num_known = np.zeros(num_slots, dtype=np.int64)
        self.num_computed = np.zeros(num_slots, dtype=np.int64)
        self.num_prompt = np.zeros(num_slots, dtype=np.int64)
        self.num_blocks = np.zeros(num_slots, dtype=np.int64)
        self.block_table = np.zeros((num_slots, max_blocks), dtype=np.int64)
        self.last_token = np.zeros(num_slots, dtype=np.int64)
        self.keys = np.zeros(num_slots, dtype=np.uint64)
        # Hash of the computed tokens of each slot.
        self.prefix_hash = np.zeros(num_slots, dtype=np.uint64)
        # Hash after each known token, kept while a sequence has more than one token to compute.
        self.pending_hashes: dict[int, UInt64Array] = {}
        self.sequences: dict[int, NewSequence] = {}
        # How many slots' tables hold a block.
        self.num_holders = np.zeros(pool.num_blocks, dtype=np.int64)
        # Per token slot of the pool, what was last written there.
        self.contents = np.zeros(pool.num_blocks * pool.block_size, dtype=np.uint64)
        self.powers = _powers(pool.max_model_len + 1)

    def reset(self) -> None:
        """Forget every sequence; the blocks keep their content."""
        self.is_active[:] = False
        self.num_holders[:] = 0
        self.pending_hashes.clear()
        self.sequences.clear()

    def release(self, slots: Sequence[int]) -> None:
        """Empty slots; each must hold a sequence."""
        for slot in slots:
            self._check_slot(slot)
            if not self.is_active[slot]:
                raise MalformedStep(f"released slot {slot} is empty")
            self.is_active[slot] = False
            self.num_holders[self.block_table[slot, : self.num_blocks[slot]]] -= 1
            self.pending_hashes.pop(slot, None)
            del self.sequences[slot]

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks one after the other; a target may be in no table."""
        if len(sources) != len(targets):
            raise MalformedStep(f"{len(sources)} copy sources for {len(targets)} targets")
        size = self.pool.block_size
        for source, target in zip(sources, targets, strict=True):
            self._check_blocks(np.array([source, target]), "copied")
            if self.num_holders[target]:
                raise MalformedStep(f"block {target} is copied over while a sequence holds it")
            self.contents[target * size : (target + 1) * size] = self.contents[
                source * size : (source + 1) * size
            ]

    def place(self, sequence: NewSequence) -> None:
        """Put a new sequence into its empty slot, after checking that its computed tokens are in its blocks."""
        slot, size = sequence.slot, self.pool.block_size
        self._check_slot(slot)
        if self.is_active[slot]:
            raise MalformedStep(f"slot {slot} of a new sequence is in use")
        token_ids = np.asarray(sequence.token_ids, dtype=np.int64)
        num_known, num_computed = len(token_ids), sequence.num_computed_tokens
        if not 1 <= sequence.num_prompt_tokens <= num_known:
            raise MalformedStep(
                f"slot {slot}: {sequence.num_prompt_tokens} prompt tokens of {num_known} tokens"
            )
        if not 0 <= num_computed < num_known:
            raise MalformedStep(f"slot {slot}: {num_computed} computed tokens of {num_known} tokens")
        if num_known > self.pool.max_model_len:
            raise MalformedStep(f"slot {slot}: {num_known} tokens, max_model_len {self.pool.max_model_len}")
        blocks = np.asarray(sequence.block_ids, dtype=np.int64)
        self._check_table(slot, blocks, num_computed // size)
        hashes = np.cumsum((token_ids + 1).astype(np.uint64) * self.powers[:num_known], dtype=np.uint64)
        held = self.contents[self._token_slots(blocks, 0, num_computed)]
        wrong = np.flatnonzero(held != hashes[:num_computed])
        if len(wrong):
            block = int(blocks[wrong[0] // size])
            raise MalformedStep(f"slot {slot}: block {block} does not hold its token {wrong[0]} as computed")
        self._fill_row(sequence, blocks, hashes, int(token_ids[-1]))

    def append_blocks(self, slots: Sequence[int], counts: Sequence[int], block_ids: Sequence[int]) -> None:
        """Append `counts[i]` blocks to the table of `slots[i]`; appended blocks may be in no table."""
        if len(counts) != len(slots):
            raise MalformedStep(f"{len(counts)} num_new_blocks for {len(slots)} slots")
        if sum(counts) != len(block_ids):
            raise MalformedStep(f"{len(block_ids)} new_block_ids, num_new_blocks add up to {sum(counts)}")
        if not block_ids:
            return
        blocks = np.asarray(block_ids, dtype=np.int64)
        self._check_blocks(blocks, "appended")
        held = blocks[self.num_holders[blocks] > 0]
        if len(held) or len(set(block_ids)) != len(block_ids):
            raise MalformedStep(
                f"appended block {held[0] if len(held) else '(twice in one step)'} is held already"
            )
        self.num_holders[blocks] += 1
        counts_column = np.asarray(counts)
        rows = np.flatnonzero(counts_column)
        slot_column = np.asarray(slots)[rows]
        first, width = 0, self.block_table.shape[1]
        for slot, count in zip(slot_column.tolist(), counts_column[rows].tolist(), strict=True):
            begin = int(self.num_blocks[slot])
            if begin + count > width:
                raise MalformedStep(f"slot {slot}: {begin + count} blocks, at most {width}")
            self.block_table[slot, begin : begin + count] = blocks[first : first + count]
            self.num_blocks[slot] = begin + count
            first += count

    def write_chunk(self, slot: int, num_new: int) -> None:
        """Compute `num_new` known tokens of one slot: the prefill path."""
        begin = int(self.num_computed[slot])
        end = begin + num_new
        if end > self.num_known[slot]:
            raise MalformedStep(
                f"slot {slot}: {num_new} new tokens, {self.num_known[slot] - begin} are not computed"
            )
        if end > self.num_blocks[slot] * self.pool.block_size:
            raise MalformedStep(f"slot {slot}: {end} tokens in {self.num_blocks[slot]} blocks")
        hashes = self.pending_hashes[slot]
        where = self._token_slots(self.block_table[slot], begin, end)
        shared = self.num_holders[where // self.pool.block_size] != 1
        if shared.any():
            block = where[shared][0] // self.pool.block_size
            raise MalformedStep(f"slot {slot}: block {block} is written while another sequence holds it")
        self.contents[where] = hashes[begin:end]
        self.prefix_hash[slot] = hashes[end - 1]
        self.num_computed[slot] = end
        if end == self.num_known[slot]:
            del self.pending_hashes[slot]

    def write_decodes(self, slots: IntArray) -> IntArray:
        """Compute the one uncomputed token of each slot; returns the position of each slot's next token."""
        positions = self.num_computed[slots]
        columns = positions // self.pool.block_size
        if (columns >= self.num_blocks[slots]).any():
            slot = int(slots[columns >= self.num_blocks[slots]][0])
            raise MalformedStep(
                f"slot {slot}: {self.num_known[slot]} tokens in {self.num_blocks[slot]} blocks"
            )
        blocks = self.block_table[slots, columns]
        if (self.num_holders[blocks] != 1).any():
            block = int(blocks[self.num_holders[blocks] != 1][0])
            raise MalformedStep(f"block {block} is written while another sequence holds it")
        hashes = self.prefix_hash[slots]
        hashes += (self.last_token[slots] + 1).astype(np.uint64) * self.powers[positions]
        self.contents[blocks * self.pool.block_size + positions % self.pool.block_size] = hashes
        self.prefix_hash[slots] = hashes
        positions += 1
        self.num_computed[slots] = positions
        return positions

    def _fill_row(
        self, sequence: NewSequence, blocks: IntArray, hashes: UInt64Array, last_token: int
    ) -> None:
        slot, num_computed = sequence.slot, sequence.num_computed_tokens
        self.is_active[slot] = True
        self.num_known[slot] = len(hashes)
        self.num_computed[slot] = num_computed
        self.num_prompt[slot] = sequence.num_prompt_tokens
        self.num_blocks[slot] = len(blocks)
        self.block_table[slot, : len(blocks)] = blocks
        self.num_holders[blocks] += 1
        self.last_token[slot] = last_token
        self.keys[slot] = sequence_key(sequence.sampling.seed, sequence.sequence_index)
        self.prefix_hash[slot] = hashes[num_computed - 1] if num_computed else 0
        if num_computed < len(hashes) - 1:
            self.pending_hashes[slot] = hashes
        self.sequences[slot] = sequence

    def _check_table(self, slot: int, blocks: IntArray, num_full: int) -> None:
        """Blocks with computed tokens may be shared, all others must be this sequence's own."""
        self._check_blocks(blocks, f"slot {slot}'s")
        if len(blocks) > self.block_table.shape[1]:
            raise MalformedStep(f"slot {slot}: {len(blocks)} blocks, at most {self.block_table.shape[1]}")
        if len(np.unique(blocks)) != len(blocks):
            raise MalformedStep(f"slot {slot}: a block is in its table twice")
        if len(blocks) < num_full:
            raise MalformedStep(f"slot {slot}: {len(blocks)} blocks for {num_full} computed ones")
        shared = blocks[num_full:][self.num_holders[blocks[num_full:]] > 0]
        if len(shared):
            raise MalformedStep(
                f"slot {slot}: block {shared[0]} is to be written while another sequence holds it"
            )

    def _token_slots(self, blocks: IntArray, begin: int, end: int) -> IntArray:
        positions = np.arange(begin, end)
        size = self.pool.block_size
        return blocks[positions // size] * size + positions % size

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.pool.max_num_seqs:
            raise MalformedStep(f"slot {slot}, the tables have {self.pool.max_num_seqs}")

    def _check_blocks(self, blocks: IntArray, what: str) -> None:
        if len(blocks) and not (blocks.min() > 0 and blocks.max() < self.pool.num_blocks):
            wrong = blocks[(blocks <= 0) | (blocks >= self.pool.num_blocks)]
            raise MalformedStep(f"{what} block {wrong[0]}, the pool has 1 to {self.pool.num_blocks - 1}")


def _powers(count: int) -> UInt64Array:
    factors = np.full(count, _BASE, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
