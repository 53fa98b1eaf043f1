"""A worker that stores tokens in blocks and checks what it reads.

The model is deterministic: the next token is a hash of all tokens before it, read through the block table, so that
a block shared wrongly, reused too early or not filled shows as an error or another output.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire_scheduler.step import LogprobColumns, NewSequence, PromptLogprobs, StepPlan, StepResult

from .reference import next_token

# What a block position holds: the token, its position, and what else its keys and values depend on.
Cell = tuple[int, int, str]


@dataclass
class Row:
    """A slot of the worker's tables."""

    tokens: list[int]
    num_computed: int
    block_table: list[int]
    sequence: NewSequence
    context: str


@dataclass
class FakeWorker:
    """Executes plans at once, in order, over real block contents."""

    num_blocks: int
    block_size: int
    rows: dict[int, Row] = field(default_factory=dict)
    blocks: dict[int, list[Cell | None]] = field(default_factory=dict)
    scores: PromptLogprobs = field(default_factory=PromptLogprobs)

    def __post_init__(self) -> None:
        self.blocks = {i: [None] * self.block_size for i in range(self.num_blocks)}

    def execute(self, plan: StepPlan) -> StepResult:
        """Runs the step in the contract's order and answers one token for each row that samples."""
        for slot in plan.released_slots:
            self.rows.pop(slot, None)
        for source, target in zip(plan.copy_source_block_ids, plan.copy_target_block_ids, strict=True):
            self.blocks[target] = list(self.blocks[source])
        for new in plan.new_sequences:
            self._place(new)
        self._append_blocks(plan)
        self.scores = PromptLogprobs()
        assert len(set(plan.slots)) == len(plan.slots)
        for slot, count in zip(plan.slots, plan.num_new_tokens, strict=True):
            self._compute(slot, count)
        slots, tokens, logprobs = [], [], LogprobColumns()
        for slot in plan.slots:
            row = self.rows[slot]
            if row.num_computed == len(row.tokens):
                token = self._sample(row)
                if row.sequence.sampling.num_logprobs is not None:
                    logprobs.rows.append(len(slots))
                    logprobs.logprobs.append(-float(token))
                    logprobs.ranks.append(1)
                    logprobs.num_top.append(1)
                    logprobs.top_token_ids.append(token)
                    logprobs.top_logprobs.append(-float(token))
                row.tokens.append(token)
                slots.append(slot)
                tokens.append(token)
        return StepResult(
            plan.step_id,
            slots,
            tokens,
            logprobs=logprobs if logprobs.rows else None,
            prompt_logprobs=self.scores if self.scores.keys else None,
        )

    def _place(self, new: NewSequence) -> None:
        assert new.slot not in self.rows, f"slot {new.slot} is taken"
        assert 0 <= new.num_computed_tokens < len(new.token_ids)
        assert len(new.block_ids) == -(-len(new.token_ids) // self.block_size)
        assert not (new.scores_prompt and new.num_computed_tokens), "scores a prompt that is partly computed"
        context = f"{new.adapter}|{new.request.cache_salt}|{new.request.media_hashes}"
        self.rows[new.slot] = Row(
            list(new.token_ids), new.num_computed_tokens, list(new.block_ids), new, context
        )

    def _append_blocks(self, plan: StepPlan) -> None:
        new_blocks = iter(plan.new_block_ids)
        for slot, count in zip(plan.slots, plan.num_new_blocks, strict=bool(plan.num_new_blocks)):
            self.rows[slot].block_table.extend(next(new_blocks) for _ in range(count))
        assert next(new_blocks, None) is None, "more new blocks than the counts say"

    def _compute(self, slot: int, count: int) -> None:
        row = self.rows[slot]
        assert count >= 1
        assert row.num_computed + count <= len(row.tokens), "computes a token that is not known"
        for position in range(row.num_computed, row.num_computed + count):
            block_id = row.block_table[position // self.block_size]
            assert block_id != 0, "writes the null block"
            users = [s for s, other in self.rows.items() if block_id in other.block_table]
            assert users == [slot], f"block {block_id} is written by slot {slot} but used by {users}"
            self.blocks[block_id][position % self.block_size] = (
                row.tokens[position],
                position,
                row.context,
            )
        if row.sequence.scores_prompt:
            self._score(slot, row, row.num_computed, row.num_computed + count)
        row.num_computed += count

    def _score(self, slot: int, row: Row, start: int, end: int) -> None:
        """Computing position p scores the prompt token behind it."""
        for position in range(start + 1, min(end + 1, row.sequence.num_prompt_tokens)):
            token = row.tokens[position]
            self.scores.keys.append(slot)
            self.scores.positions.append(position)
            columns = LogprobColumns([], [-float(token)], [1], [1], [token], [-float(token)])
            self.scores.columns.extend(columns, 0, 0, 1)

    def _sample(self, row: Row) -> int:
        read: list[int] = []
        for position in range(row.num_computed):
            cell = self.blocks[row.block_table[position // self.block_size]][position % self.block_size]
            assert cell == (row.tokens[position], position, row.context), (
                f"position {position} of {row.sequence.request.handle}/{row.sequence.sequence_index} holds {cell}"
            )
            read.append(cell[0])
        return next_token(read, row.sequence.sampling.seed, row.sequence.sequence_index)
