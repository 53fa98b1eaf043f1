"""Sampling that the device kernels don't do yet: penalties, biases, masks and log-probabilities, by the host's sampler.

A step in which a sequence asks for one of these waits for the device; the sequence's device row is greedy and what it
chose is overwritten. Every other row keeps the device's token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.masks import Words
from quire_worker.sampling.adjust import has_penalties
from quire_worker.sampling.sampler import Sampler
from quire_worker.step import LogprobColumns, NewSequence, PromptLogprobs, SamplingParams


def is_for_host(params: SamplingParams) -> bool:
    """Whether a sequence needs the host's sampler."""
    return bool(
        has_penalties(params)
        or params.logit_bias
        or params.allowed_token_ids
        or params.min_tokens
        or params.wants_logprobs
        or params.bad_token_sequences
        or params.is_masked
    )


def has_filter(params: SamplingParams) -> bool:
    """Whether the device must look at min_p, top_k or top_p."""
    return params.temperature > 0.0 and (params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class HostLogits:
    """A step's logits for the host's sampler. tokens: what the device chose for the sampling rows."""

    tokens: NDArray[np.int32]
    rows: torch.Tensor
    of_rows: Callable[[NDArray[np.int32]], torch.Tensor]

    def greedy(self) -> NDArray[np.int32]:
        """See Sampler's Logits."""
        return self.tokens

    def logits(self) -> NDArray[np.float32]:
        """See Sampler's Logits."""
        return self.rows.float().cpu().numpy()

    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """See Sampler's Logits."""
        return self.of_rows(rows).float().cpu().numpy()


@dataclass(slots=True)
class _Rows:
    """What PromptLogprobs reads of a batch."""

    slots: NDArray[np.int64]
    query_start_loc: NDArray[np.int64]
    max_seqs: int


@dataclass(slots=True)
class HostSampling:
    """Follows the sequences that need the host's sampler. One thread."""

    vocab_size: int
    max_num_seqs: int
    _sampler: Sampler = field(init=False)
    _slots: set[int] = field(init=False, default_factory=set)
    _prompt_slots: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.vocab_size, self.max_num_seqs)

    def admit(self, sequence: NewSequence) -> SamplingParams:
        """Take a new sequence; how the device is to sample it. ValueError for ids outside the vocabulary."""
        params = sequence.sampling
        is_for_us = is_for_host(params)
        wants_prompt = params.num_prompt_logprobs is not None
        # A sequence that is the device's is greedy to this sampler, which then costs nothing.
        mine = params if is_for_us else SamplingParams(
            temperature=0.0, num_prompt_logprobs=params.num_prompt_logprobs
        )  # fmt: skip
        self._sampler.admit(replace(sequence, sampling=mine))
        if is_for_us:
            self._slots.add(sequence.slot)
        if wants_prompt and self._sampler.scores_prompt(sequence.slot):
            self._prompt_slots.add(sequence.slot)
        return SamplingParams(temperature=0.0) if is_for_us else params

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._slots.discard(slot)
        self._prompt_slots.discard(slot)
        self._sampler.forget(slot)

    def forget_all(self) -> None:
        """All slots were released."""
        self._slots.clear()
        self._prompt_slots.clear()
        self._sampler.forget_all()

    def wants_prompt_rows(self, slots: Sequence[int]) -> bool:
        """Whether a step of these slots must keep the hidden states of all its rows."""
        return not self._prompt_slots.isdisjoint(slots)

    def is_needed(self, slots: Sequence[int]) -> bool:
        """Whether a step that samples these slots needs the host."""
        return not self._slots.isdisjoint(slots)

    def sample(
        self, slots: NDArray[np.int64], logits: HostLogits, masks: Mapping[int, Words] | None = None
    ) -> tuple[NDArray[np.int32], LogprobColumns | None]:
        """The tokens of all sampling rows, and the log-probabilities of those that asked. masks: see Sampler."""
        chosen = self._sampler.sample(slots, logits, masks)
        return chosen.token_ids, chosen.logprobs

    def prompt_logprobs(
        self, slots: NDArray[np.int64], query_start_loc: NDArray[np.int64], logits: HostLogits
    ) -> PromptLogprobs | None:
        """Log-probabilities of the prompt tokens that this step brought."""
        rows = _Rows(slots, query_start_loc, self.max_num_seqs)
        found = self._sampler.prompt_logprobs(rows, logits)  # type: ignore[arg-type]
        self._prompt_slots = {slot for slot in self._prompt_slots if self._sampler.scores_prompt(slot)}
        return found
