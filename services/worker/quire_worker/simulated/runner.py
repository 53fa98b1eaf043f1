"""Runs a plan without a model: checks it, advances the tables, samples deterministic tokens. Never waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire_worker.executor import PoolDescription
from quire_worker.masks import Words, permitted_ids
from quire_worker.pooling.params import PooledVectors
from quire_worker.simulated.tables import MalformedStep, SlotTables
from quire_worker.simulated.tokens import token_ids_at
from quire_worker.simulated.vectors import simulated_vector
from quire_worker.step import (
    LogprobColumns,
    NewSequence,
    PromptLogprobs,
    SamplingParams,
    StepOutcome,
    StepPlan,
)

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Which ids are sampled. eos_token_id comes as output token number `eos_after_tokens` (0: never)."""

    first_id: int = 1000
    num_ids: int = 8000
    eos_token_id: int = 0
    eos_after_tokens: int = 0


class SimulatedRunner:
    """Executes plans over slot tables. A malformed plan raises MalformedStep; then only `reset` helps."""

    def __init__(
        self,
        pool: PoolDescription,
        tokens: TokenRange,
        vocab_size: int = 1 << 16,
        embedding_size: int = 64,
    ) -> None:
        self._vocab_size = vocab_size
        self._tables = SlotTables(pool)
        self._pool = pool
        self._tokens = tokens
        self._embedding_size = embedding_size
        # Slots of sequences whose answer is a vector.
        self._pooled_slots: set[int] = set()
        self._next_step_id: int | None = None
        # Slots whose sampling asks for more than the plain token: a slower path.
        self._special_slots: set[int] = set()
        # Prompts whose log-probabilities are wanted: the last position told, by slot.
        self._scored: dict[int, int] = {}
        self._last_slots: Sequence[int] = ()
        self._last_slot_column: IntArray = np.zeros(0, dtype=np.int64)

    def reset(self) -> None:
        """Forget every sequence and the step number."""
        self._tables.reset()
        self._special_slots.clear()
        self._pooled_slots.clear()
        self._scored.clear()
        self._next_step_id = None
        self._last_slots = ()

    def execute(self, plan: StepPlan, masks: Mapping[int, Words] | None = None) -> StepOutcome:
        """One step. Raises MalformedStep where the real worker would corrupt something.

        masks: by slot, what the plan's masked slots may sample.
        """
        self._check_order(plan)
        tables = self._tables
        if plan.released_slots:
            tables.release(plan.released_slots)
            self._special_slots.difference_update(plan.released_slots)
            self._pooled_slots.difference_update(plan.released_slots)
            for slot in plan.released_slots:
                self._scored.pop(slot, None)
            self._last_slots = ()
        if plan.copy_source_block_ids or plan.copy_target_block_ids:
            tables.copy_blocks(plan.copy_source_block_ids, plan.copy_target_block_ids)
        for sequence in plan.new_sequences:
            tables.place(sequence)
            if sequence.pooling is not None:
                self._pooled_slots.add(sequence.slot)
            if _is_special(sequence.sampling):
                self._special_slots.add(sequence.slot)
            if sequence.sampling.num_prompt_logprobs is not None:
                self._score(sequence)
        if plan.num_new_blocks or plan.new_block_ids:
            tables.append_blocks(plan.slots, plan.num_new_blocks, plan.new_block_ids)
        if not plan.slots:
            return StepOutcome(plan.step_id, [], [])
        column = self._check_columns(plan)
        sampled = self._compute(plan, column)
        pooled = None
        if self._pooled_slots:
            sampled, pooled = self._pool_vectors(sampled)
        token_ids = self._sample(sampled, masks)
        slots = plan.slots if len(sampled) == len(column) else sampled.tolist()
        token_list = token_ids.tolist()
        logprobs = self._logprobs(slots, token_list) if self._special_slots else None
        scores = self._prompt_logprobs(plan) if self._scored else None
        return StepOutcome(plan.step_id, list(slots), token_list, logprobs, scores, pooled=pooled)

    def _check_order(self, plan: StepPlan) -> None:
        if self._next_step_id is not None and plan.step_id != self._next_step_id:
            raise MalformedStep(f"step {plan.step_id} came where {self._next_step_id} was due")
        self._next_step_id = plan.step_id + 1

    def _check_columns(self, plan: StepPlan) -> IntArray:
        """The slots as a column, each active, none twice, with tokens to compute within the budget."""
        slots, counts = plan.slots, plan.num_new_tokens
        if len(counts) != len(slots):
            raise MalformedStep(f"{len(counts)} num_new_tokens for {len(slots)} slots")
        if min(counts) < 1:
            raise MalformedStep(f"slot {slots[list(counts).index(min(counts))]}: no token to compute")
        if sum(counts) > self._pool.max_tokens_per_step:
            raise MalformedStep(f"{sum(counts)} tokens in a step of at most {self._pool.max_tokens_per_step}")
        if slots == self._last_slots and not plan.new_sequences:
            return self._last_slot_column
        column = np.asarray(slots, dtype=np.int64)
        if len(set(slots)) != len(slots):
            raise MalformedStep("a slot is in the step twice")
        if column.min() < 0 or column.max() >= self._pool.max_num_seqs:
            raise MalformedStep(f"a slot is not in 0 to {self._pool.max_num_seqs - 1}")
        if not self._tables.is_active[column].all():
            raise MalformedStep(f"slot {column[~self._tables.is_active[column]][0]} is empty")
        missing = {sequence.slot for sequence in plan.new_sequences}.difference(slots)
        if missing:
            raise MalformedStep(f"new sequence of slot {missing.pop()} does not run in its first step")
        self._last_slots, self._last_slot_column = list(slots), column
        return column

    def _compute(self, plan: StepPlan, column: IntArray) -> IntArray:
        """Advances every row; returns the slots that sample, in the plan's order."""
        tables = self._tables
        if not tables.pending_hashes:
            if max(plan.num_new_tokens) > 1:
                row = next(row for row, count in enumerate(plan.num_new_tokens) if count > 1)
                raise MalformedStep(
                    f"slot {plan.slots[row]}: {plan.num_new_tokens[row]} new tokens, 1 is not computed"
                )
            tables.write_decodes(column)
            return column
        decodes = [slot not in tables.pending_hashes for slot in plan.slots]
        for slot, count, is_decode in zip(plan.slots, plan.num_new_tokens, decodes, strict=True):
            if not is_decode:
                tables.write_chunk(slot, count)
            elif count != 1:
                raise MalformedStep(f"slot {slot}: {count} new tokens, 1 is not computed")
        tables.write_decodes(column[np.array(decodes)])
        is_complete = tables.num_computed[column] == tables.num_known[column]
        return np.asarray(column[is_complete])

    def _pool_vectors(self, completed: IntArray) -> tuple[IntArray, PooledVectors | None]:
        """Splits the completed slots: those that sample, and the vectors of the others."""
        is_pooled = np.array([slot in self._pooled_slots for slot in completed.tolist()], dtype=bool)
        found = PooledVectors([], [])
        for slot in completed[is_pooled].tolist():
            params = self._tables.sequences[slot].pooling
            assert params is not None, "a pooled slot"
            num_tokens = int(self._tables.num_known[slot])
            prefix_hash = int(self._tables.prefix_hash[slot])
            found.slots.append(slot)
            found.vectors.append(simulated_vector(params, prefix_hash, num_tokens, self._embedding_size))
        return completed[~is_pooled], found if found.slots else None

    def _sample(self, slots: IntArray, masks: Mapping[int, Words] | None = None) -> IntArray:
        tables, tokens = self._tables, self._tokens
        positions = tables.num_known[slots]
        if (positions >= self._pool.max_model_len).any():
            slot = slots[positions >= self._pool.max_model_len][0]
            raise MalformedStep(f"slot {slot} grows beyond max_model_len {self._pool.max_model_len}")
        ids = token_ids_at(tables.keys[slots], positions.astype(np.uint64), tokens.first_id, tokens.num_ids)
        if tokens.eos_after_tokens:
            is_end = positions - tables.num_prompt[slots] + 1 >= tokens.eos_after_tokens
            ids[is_end] = tokens.eos_token_id
        for row in self._rows_with_allowed_ids(slots):
            allowed = tables.sequences[int(slots[row])].sampling.allowed_token_ids
            ids[row] = allowed[int(ids[row]) % len(allowed)]
        if masks:
            self._apply_masks(slots, ids, masks)
        tables.last_token[slots] = ids
        tables.num_known[slots] = positions + 1
        return ids

    def _apply_masks(self, slots: IntArray, ids: IntArray, masks: Mapping[int, Words]) -> None:
        """Masked rows sample one of the tokens that their mask permits, as deterministically as all others."""
        for row, slot in enumerate(slots.tolist()):
            if slot in masks:
                permitted = permitted_ids(masks[slot], self._vocab_size)
                if not len(permitted):
                    raise MalformedStep(f"slot {slot}: its mask permits no token")
                if not (permitted == ids[row]).any():
                    ids[row] = permitted[int(ids[row]) % len(permitted)]

    def _rows_with_allowed_ids(self, slots: IntArray) -> list[int]:
        if not self._special_slots:
            return []
        sequences = self._tables.sequences
        return [
            row
            for row, slot in enumerate(slots.tolist())
            if slot in self._special_slots and sequences[slot].sampling.allowed_token_ids
        ]

    def _logprobs(self, slots: Sequence[int], token_ids: Sequence[int]) -> LogprobColumns | None:
        """Made-up log-probabilities of the right shape: the sampled token is the most probable."""
        columns = LogprobColumns([], [], [], [], [], [])
        for row, slot in enumerate(slots):
            sampling = self._tables.sequences[slot].sampling
            if sampling.wants_logprobs:
                columns.rows.append(row)
                self._add(columns, token_ids[row], sampling.num_logprobs or 0, sampling.logprob_token_ids)
        return columns if columns.rows else None

    def _score(self, sequence: NewSequence) -> None:
        """Follow a prompt whose log-probabilities are wanted, as a worker has to compute them: from its first token."""
        if sequence.num_computed_tokens:
            raise MalformedStep(
                f"slot {sequence.slot}: prompt log-probabilities with {sequence.num_computed_tokens} computed tokens"
            )
        self._scored[sequence.slot] = 0

    def _prompt_logprobs(self, plan: StepPlan) -> PromptLogprobs | None:
        """Made-up log-probabilities of the prompt tokens whose predecessors this step computed."""
        found = PromptLogprobs([], [], LogprobColumns([], [], [], [], [], []))
        for slot in plan.slots:
            done = self._scored.get(slot)
            if done is None:
                continue
            sequence = self._tables.sequences[slot]
            end = min(int(self._tables.num_computed[slot]), sequence.num_prompt_tokens - 1)
            for position in range(done + 1, end + 1):
                found.slots.append(slot)
                found.positions.append(position)
                num_top = sequence.sampling.num_prompt_logprobs or 0
                self._add(found.logprobs, int(sequence.token_ids[position]), num_top, ())
            self._scored[slot] = end
            if end == sequence.num_prompt_tokens - 1:
                del self._scored[slot]
        return found if found.slots else None

    def _add(self, columns: LogprobColumns, token_id: int, num_top: int, chosen_ids: Sequence[int]) -> None:
        """One token, and as many others as were asked for, each less probable than the one before."""
        tokens = self._tokens
        top = list(chosen_ids) or [
            tokens.first_id + (token_id - tokens.first_id + rank) % tokens.num_ids for rank in range(num_top)
        ]
        columns.logprobs.append(-0.5)
        columns.ranks.append(1)
        columns.num_top.append(len(top))
        columns.top_token_ids.extend(top)
        columns.top_logprobs.extend(-0.5 - rank for rank in range(len(top)))


def _is_special(sampling: SamplingParams) -> bool:
    return sampling.wants_logprobs or bool(sampling.allowed_token_ids)
