"""The sampler: which token each sampling row gets. Keeps what it must remember of each slot; knows no model.

A row's result depends on its own logits, parameters, tokens and (seed, sequence index, position) alone, never on the
rest of the batch. Rows that ask for nothing but greedy decoding cost nothing: the forward pass has their choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.input_batch import InputBatch
from quire_worker.sampling import adjust
from quire_worker.sampling.draw import Draw, draw_in_numpy
from quire_worker.sampling.logprobs import LogprobCollector
from quire_worker.sampling.prompt_logprobs import PromptLogprobs
from quire_worker.step import LogprobColumns, NewSequence, SamplingParams


class Logits(Protocol):
    """What the sampler needs of a forward pass."""

    def greedy(self) -> NDArray[np.int32]:
        """Of each sampling row, the token id with the largest logit."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """Raw logits of the sampling rows; not to be written."""
        ...

    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of any rows of the step."""
        ...


@dataclass(slots=True)
class _SlotState:
    """What is remembered of a sequence between steps. num_known: its tokens, prompt and output."""

    params: SamplingParams
    sequence_index: int
    num_prompt_tokens: int
    num_known: int
    counts: adjust.TokenCounts | None
    allowed: NDArray[np.int64] | None
    ending_ids: NDArray[np.int64] | None

    @property
    def forbidden(self) -> NDArray[np.int64] | None:
        """Ids that can't be drawn yet: those that would end the sequence before min_tokens."""
        return self.ending_ids if self.num_known - self.num_prompt_tokens < self.params.min_tokens else None


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per sampling row, and the log-probabilities that were asked for."""

    token_ids: NDArray[np.int32]
    logprobs: LogprobColumns | None


class Sampler:
    """Chooses tokens for slots. `admit` and `forget` follow the plan; `sample` is called once a step."""

    def __init__(self, vocab_size: int, max_num_seqs: int, draw: Draw = draw_in_numpy) -> None:
        self._vocab_size = vocab_size
        self._draw = draw
        self._states: list[_SlotState | None] = [None] * max_num_seqs
        # True where nothing but the largest logit is asked for.
        self._plain = np.ones(max_num_seqs, dtype=bool)
        self._prompts = PromptLogprobs()

    def admit(self, sequence: NewSequence) -> None:
        """Remember a new sequence. ValueError for ids outside the vocabulary."""
        params = sequence.sampling
        self._check_ids(sequence)
        self._prompts.admit(sequence)
        self._plain[sequence.slot] = _is_plain(params)
        if self._plain[sequence.slot]:
            self._states[sequence.slot] = None
            return
        tokens = np.asarray(sequence.token_ids, dtype=np.int32)
        prompt, output = tokens[: sequence.num_prompt_tokens], tokens[sequence.num_prompt_tokens :]
        ending = [*params.stop_token_ids, *(() if params.ignore_eos else sequence.eos_token_ids)]
        self._states[sequence.slot] = _SlotState(
            params=params,
            sequence_index=sequence.sequence_index,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_known=len(tokens),
            counts=adjust.TokenCounts(self._vocab_size, prompt, output)
            if adjust.has_penalties(params)
            else None,
            allowed=_ids(params.allowed_token_ids),
            ending_ids=_ids(ending),
        )

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._states[slot] = None
        self._plain[slot] = True
        self._prompts.forget(slot)

    def forget_all(self) -> None:
        """All slots were released."""
        for slot in range(len(self._states)):
            self.forget(slot)

    def sample(self, slots: NDArray[np.int64], forward: Logits) -> Sampled:
        """A token for each of the slots, which are those of the forward pass's sampling rows, in order."""
        token_ids = forward.greedy().copy()
        if self._plain[slots].all():
            return Sampled(token_ids, None)
        logits = forward.logits()
        asking = [
            (row, self._states[slot]) for row, slot in enumerate(slots.tolist()) if not self._plain[slot]
        ]
        drawn: list[tuple[int, _SlotState, NDArray[np.float32]]] = []
        collector = LogprobCollector()
        for row, state in asking:
            assert state is not None
            adjusted = _adjusted(logits[row], state)
            if state.params.temperature > 0.0:
                adjust.scale_and_filter(adjusted, state.params)
                drawn.append((row, state, adjusted))
            else:
                token_ids[row] = np.argmax(adjusted)
        self._draw_rows(drawn, token_ids)
        for row, state in asking:
            assert state is not None
            if state.params.num_logprobs is not None:
                collector.add(row, logits[row], int(token_ids[row]), state.params.num_logprobs)
            state.num_known += 1
            if state.counts is not None:
                state.counts.add(int(token_ids[row]))
        return Sampled(token_ids, collector.columns())

    def prompt_logprobs(self, batch: InputBatch, forward: Logits) -> Mapping[int, LogprobColumns]:
        """By slot, the prompt log-probabilities that this step completed. Called after `sample`."""
        return self._prompts.collect(batch, forward)

    def _draw_rows(
        self, drawn: list[tuple[int, _SlotState, NDArray[np.float32]]], token_ids: NDArray[np.int32]
    ) -> None:
        if not drawn:
            return
        states = [state for _, state, _ in drawn]
        token_ids[[row for row, _, _ in drawn]] = self._draw(
            np.stack([logits for _, _, logits in drawn]),
            np.array([state.params.seed for state in states], dtype=np.uint64),
            np.array([state.sequence_index for state in states], dtype=np.int64),
            np.array([state.num_known for state in states], dtype=np.int64),
        )

    def _check_ids(self, sequence: NewSequence) -> None:
        params = sequence.sampling
        ids = (*params.logit_bias, *params.stop_token_ids, *params.allowed_token_ids, *sequence.eos_token_ids)
        tokens = np.asarray(sequence.token_ids)
        if any(not 0 <= token < self._vocab_size for token in ids) or not (
            tokens.min() >= 0 and tokens.max() < self._vocab_size
        ):
            raise ValueError(f"slot {sequence.slot}: a token id is outside 0..{self._vocab_size - 1}")


def _is_plain(params: SamplingParams) -> bool:
    return (
        params.temperature == 0.0
        and params.num_logprobs is None
        and params.min_tokens == 0
        and not params.logit_bias
        and not params.allowed_token_ids
        and not adjust.has_penalties(params)
    )


def _ids(values: object) -> NDArray[np.int64] | None:
    array = np.asarray(values, dtype=np.int64)
    return np.unique(array) if len(array) else None


def _adjusted(raw: NDArray[np.float32], state: _SlotState) -> NDArray[np.float32]:
    """A copy of a row after bias, penalties and masks."""
    row = raw.copy()
    adjust.add_bias(row, state.params)
    if state.counts is not None:
        state.counts.penalise(row, state.params)
    adjust.mask(row, state.allowed, state.forbidden)
    return row
