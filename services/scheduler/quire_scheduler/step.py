"""What crosses between the scheduler and its driver once per step: plan, result, deltas; data without logic.

All hot data are parallel columns of plain ints. Columns may be shared between steps: treat them as read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire_scheduler.errors import SchedulerError
from quire_scheduler.request import Request, SamplingParams, Sequence


@dataclass(slots=True)
class NewSequence:
    """A sequence that the worker does not know yet, in full; it is in the plan's columns too, with no new blocks."""

    slot: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[int]
    sampling: SamplingParams
    sequence_index: int
    adapter: str
    request: Request
    # It computes its prompt's log-probabilities: for other sequences the wish is not passed on.
    scores_prompt: bool = False


@dataclass(slots=True)
class SamplingRows:
    """The rows of a step that sample, as columns; shared between steps while the batch stays the same."""

    sequences: list[Sequence] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    handles: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    ones: list[int] = field(default_factory=list)
    # Whether one owner has all rows.
    is_single_owner: bool = True
    # Those that a mask may bound, in order.
    masked: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class StepPlan:
    """One step for the worker, which applies it in the order: released_slots, copies, new_sequences, columns.

    Row i runs `num_new_tokens[i]` tokens in slot `slots[i]`. `num_new_blocks` is empty when no row has any. A row
    samples exactly when all its known tokens are computed after the step; `sampling_rows` lists those in order.
    """

    step_id: int
    slots: list[int]
    num_new_tokens: list[int]
    num_new_blocks: list[int] = field(default_factory=list)
    new_block_ids: list[int] = field(default_factory=list)
    released_slots: list[int] = field(default_factory=list)
    copy_source_block_ids: list[int] = field(default_factory=list)
    copy_target_block_ids: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    # Slots that must not sample before their mask came.
    masked_slots: list[int] = field(default_factory=list)
    # Tokens computed in this step, all rows.
    num_tokens: int = 0
    # Private to the scheduler from here on.
    sampling_rows: SamplingRows = field(default_factory=SamplingRows)
    # The sequences of `masked_slots`.
    masked: list[Sequence] = field(default_factory=list)
    # Sequences whose vector this step brings, and their slots.
    pooled: list[Sequence] = field(default_factory=list)
    pooled_slots: list[int] = field(default_factory=list)
    # Slots whose rows may bring prompt log-probabilities.
    scored_prompts: dict[int, Request] = field(default_factory=dict)
    # Requests of which this is the first step.
    started: list[Request] = field(default_factory=list)
    # Sequences that get their first token ever in this step.
    first_token: list[Sequence] = field(default_factory=list)
    # (sequence, its block table, tokens in blocks that are full once this step is acknowledged)
    filled: list[tuple[Sequence, list[int], int]] = field(default_factory=list)
    # A row's sequence ended or was preempted after planning: its rows need a closer look.
    is_disturbed: bool = False


@dataclass(slots=True)
class LogprobColumns:
    """Log-probabilities, one entry per token, only for rows that asked; `rows` indexes the enclosing columns."""

    rows: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    num_top: list[int] = field(default_factory=list)
    top_token_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def extend(self, other: LogprobColumns, i: int, start: int, end: int) -> None:
        """Append entry `i` of `other`, whose most probable tokens lie in [start, end). `rows` is the caller's."""
        self.logprobs.append(other.logprobs[i])
        self.ranks.append(other.ranks[i])
        self.num_top.append(other.num_top[i])
        self.top_token_ids += other.top_token_ids[start:end]
        self.top_logprobs += other.top_logprobs[start:end]


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens, one entry per token: of `keys` (slots in a result, handles in deltas) the
    token at `positions` (from 1). The `rows` of their columns are empty."""

    keys: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    columns: LogprobColumns = field(default_factory=LogprobColumns)


@dataclass(slots=True)
class StepResult:
    """What the worker answers to a plan: one row per sequence that sampled, in the plan's order.

    `num_tokens` may be empty: one token each. `pooled_slots`, `pooled`: vectors (float32, little endian) of the
    sequences that want one. Times are microseconds.
    """

    step_id: int
    slots: list[int]
    token_ids: list[int]
    num_tokens: list[int] = field(default_factory=list)
    logprobs: LogprobColumns | None = None
    prompt_logprobs: PromptLogprobs | None = None
    pooled_slots: list[int] = field(default_factory=list)
    pooled: list[bytes] = field(default_factory=list)
    sampled_at_unix_us: int = 0
    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    idle_us: int = 0
    mask_wait_us: int = 0


@dataclass(slots=True)
class Deltas:
    """News for one owner: one row per sequence with new tokens or an end.

    `finish_reasons` is empty if no row ended, else one FinishReason value per row (0: goes on). A token that ended its
    sequence is among the tokens. `started_handles`/`num_cached_tokens`: requests whose prompt began to be computed.
    `rejections`: requests that failed as a whole after they were accepted; they have no finish row.
    """

    handles: list[int] = field(default_factory=list)
    sequence_indices: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: list[int] = field(default_factory=list)
    started_handles: list[int] = field(default_factory=list)
    num_cached_tokens: list[int] = field(default_factory=list)
    rejections: list[tuple[int, SchedulerError]] = field(default_factory=list)
    logprobs: LogprobColumns | None = None
    prompt_logprobs: PromptLogprobs | None = None
    # Per pooled request that is complete: its handle and its vector, as the worker sent it.
    pooled: list[tuple[int, bytes]] = field(default_factory=list)
