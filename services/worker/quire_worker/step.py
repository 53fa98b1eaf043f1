"""What the runner is told and what it answers: a step's plan and outcome as plain columns.

Knows nothing of protobuf, gRPC or tensors; the servicer translates between these and the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire_worker.pooling.params import PooledVectors, PoolingParams

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a sequence's tokens are chosen; every default is resolved, ranges are checked by the gateway.

    temperature: 0 is greedy. top_k: 0 is off. num_logprobs, num_prompt_logprobs: None is none at all, 0 is the
    token alone. min_tokens: eos and stop ids can't be sampled before the output holds that many tokens;
    stop_token_ids takes part only in that mask, because ending a sequence is the scheduler's business.
    allowed_token_ids: if not empty, nothing else can be sampled. bad_token_sequences: the last token of each can't be
    sampled where the output ends with all its others. logprob_token_ids: in place of the most probable tokens, these in
    this order; excludes num_logprobs. is_masked: plans may name the sequence's slot among their masked slots.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] = ()
    bad_token_sequences: Sequence[Sequence[int]] = ()
    logprob_token_ids: Sequence[int] = ()
    is_masked: bool = False

    @property
    def wants_logprobs(self) -> bool:
        """Whether sampled tokens come with log-probabilities."""
        return self.num_logprobs is not None or bool(self.logprob_token_ids)


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence in full, as the worker first (or, after preemption, again) hears of it.

    token_ids: prompt, then output so far. num_computed_tokens: leading tokens whose keys and values are in
    `block_ids` already, less than len(token_ids). block_ids: token i lives in block_ids[i // block_size].
    eos_token_ids: masked before min_tokens unless the sampling says ignore_eos. pooling: set for a sequence whose
    answer is a vector: it never samples.
    """

    slot: int
    token_ids: Sequence[int] | Int32Array
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: Sequence[int] | Int32Array
    sampling: SamplingParams
    eos_token_ids: Sequence[int] = ()
    sequence_index: int = 0
    pooling: PoolingParams | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Applied in the order: released_slots, block copies, new_sequences, columns.

    Columns, one row per sequence that runs (new sequences are among them): slots; num_new_tokens, the tokens to
    compute from the first uncomputed one on, at least 1; num_new_blocks, the blocks appended to the row's table
    before the step (empty: none for any row); new_block_ids, those blocks, row after row.
    A row samples exactly when all its known tokens are computed after the step; the sampled token is then
    appended to its known tokens, so the next plan may be submitted before this one has run.
    masked_slots: slots among these that must not sample before a StepMask tells what they may.
    """

    step_id: int
    slots: Sequence[int]
    num_new_tokens: Sequence[int]
    num_new_blocks: Sequence[int] = ()
    new_block_ids: Sequence[int] = ()
    released_slots: Sequence[int] = ()
    copy_source_block_ids: Sequence[int] = ()
    copy_target_block_ids: Sequence[int] = ()
    new_sequences: Sequence[NewSequence] = ()
    masked_slots: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class StepMask:
    """Which tokens masked slots of a step may sample.

    words: [len(slots), ceil(vocab_size / 32)] uint32; bit t % 32 of word t // 32 set: token t may be sampled.
    """

    step_id: int
    slots: list[int]
    words: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """Log-probabilities from the raw logits, one entry per token of a row that asked (see the contract).

    rows: index into the outcome's `slots`. num_top: how many of top_token_ids and top_logprobs are the entry's.
    """

    rows: list[int]
    logprobs: list[float]
    ranks: list[int]
    num_top: list[int]
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens, one entry per token, each given all tokens before it.

    slots: whose prompt. positions: the token's place in the prompt, from 1. logprobs: their columns, `rows` empty.
    """

    slots: list[int]
    positions: list[int]
    logprobs: LogprobColumns


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's time went, in microseconds. idle_us: the engine waited for a plan before it. mask_wait_us: it
    waited for masks before sampling, which is no part of sample_us."""

    prepare_us: int = 0
    forward_us: int = 0
    sample_us: int = 0
    idle_us: int = 0
    mask_wait_us: int = 0


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step brought. slots, token_ids: parallel, one entry per row that sampled, in the plan's order.

    logprobs: only where a row asked. prompt_logprobs: of the prompt tokens whose predecessors this step computed, for
    sequences that asked.
    sampled_at_unix_us: wall clock when the tokens were known on the host. pooled: vectors of the pooled sequences
    that the step completed.
    """

    step_id: int
    slots: list[int]
    token_ids: list[int]
    logprobs: LogprobColumns | None = None
    prompt_logprobs: PromptLogprobs | None = None
    times: StepTimes = field(default_factory=StepTimes)
    sampled_at_unix_us: int = 0
    pooled: PooledVectors | None = None
