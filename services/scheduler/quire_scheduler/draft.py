"""A step plan while it is being made: rows beside the decoding batch, and what the step brings about."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire_scheduler.request import Request, Sequence
from quire_scheduler.step import NewSequence


@dataclass(slots=True)
class Draft:
    """Collects one pass of the planner. `slots`/`num_new_tokens` are the rows after the decoding ones."""

    step_id: int
    now_s: float
    slots: list[int] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    copy_source_block_ids: list[int] = field(default_factory=list)
    copy_target_block_ids: list[int] = field(default_factory=list)
    # Decoding sequences that got a block in this pass.
    new_blocks: dict[Sequence, int] = field(default_factory=dict)
    # Decoding sequences that must wait for blocks: not in this step.
    stalled: set[Sequence] = field(default_factory=set)
    num_preempted: int = 0
    # Sequences whose last known token is computed in this step: they sample, and decode from the next step on.
    completed: list[Sequence] = field(default_factory=list)
    # Sequences whose vector is made in this step.
    pooled: list[Sequence] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    scored_prompts: dict[int, Request] = field(default_factory=dict)
    filled: list[tuple[Sequence, list[int], int]] = field(default_factory=list)
    # Waiting sequences that can never run, with the most tokens the pool allows.
    misfits: list[Sequence] = field(default_factory=list)

    @property
    def is_short(self) -> bool:
        """Whether memory was too short for what runs already: then nothing is admitted."""
        return self.num_preempted > 0 or bool(self.stalled)

    def add_row(self, sequence: Sequence, num_tokens: int) -> None:
        """The sequence computes its next `num_tokens` known tokens in this step."""
        sequence.num_planned_tokens += num_tokens
        sequence.last_step_id = self.step_id
        self.slots.append(sequence.slot)
        self.num_new_tokens.append(num_tokens)
        self.filled.append((sequence, sequence.block_table, sequence.num_planned_tokens))
        if sequence.request.prompt_scorer is sequence:
            self.scored_prompts[sequence.slot] = sequence.request
        if sequence.num_planned_tokens == sequence.num_tokens:
            (self.pooled if sequence.request.is_pooled else self.completed).append(sequence)
