"""The sampler: which token each sampling row gets. Keeps what it must remember of each slot; knows no model.

A row's result depends on its own logits, parameters, tokens and (seed, sequence index, position) alone, never on the
rest of the batch. Rows that ask for nothing but greedy decoding cost nothing: the forward pass has their choice.

What happens to a row, in this order, here and in every other sampler: logit_bias; repetition, frequency and presence
penalties; the step's mask, if the row has one; allowed_token_ids; then the ids that cannot come now are masked (before
min_tokens the ending ones, and what would complete a bad sequence) unless nothing would be left; temperature, min_p,
top_k, top_p; the draw.
Log-probabilities are read before all that (raw mode) or after it (processed mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.input_batch import InputBatch
from quire_worker.sampling import adjust
from quire_worker.sampling.bad_tokens import BadTokens
from quire_worker.sampling.draw import Draw, draw_in_numpy
from quire_worker.sampling.logprobs import LogprobCollector
from quire_worker.sampling.prompt_logprobs import PromptScorer
from quire_worker.step import LogprobColumns, NewSequence, PromptLogprobs, SamplingParams

_NO_MASKS: Mapping[int, NDArray[np.uint32]] = {}


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
    bad_tokens: BadTokens | None

    @property
    def forbidden(self) -> NDArray[np.int64] | None:
        """Ids that can't be drawn now: those that would end the sequence before min_tokens or complete a bad one."""
        ending = self.ending_ids if self.num_known - self.num_prompt_tokens < self.params.min_tokens else None
        if self.bad_tokens is None:
            return ending
        bad = self.bad_tokens.forbidden()
        return bad if ending is None else np.union1d(bad, ending)

    def append(self, token_id: int) -> None:
        """One more output token."""
        self.num_known += 1
        if self.counts is not None:
            self.counts.add(token_id)
        if self.bad_tokens is not None:
            self.bad_tokens.add(token_id)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per sampling row, and the log-probabilities that were asked for."""

    token_ids: NDArray[np.int32]
    logprobs: LogprobColumns | None


class Sampler:
    """Chooses tokens for slots. `admit` and `forget` follow the plan; `sample` is called once a step."""

    def __init__(
        self,
        vocab_size: int,
        max_num_seqs: int,
        draw: Draw = draw_in_numpy,
        *,
        is_raw: bool = True,
    ) -> None:
        """is_raw: log-probabilities are those of the model's own logits, not of what the token is drawn from."""
        self._vocab_size = vocab_size
        self._draw = draw
        self._is_raw = is_raw
        self._states: list[_SlotState | None] = [None] * max_num_seqs
        # True where nothing but the largest logit is asked for.
        self._plain = np.ones(max_num_seqs, dtype=bool)
        self._prompts = PromptScorer()

    def admit(self, sequence: NewSequence) -> None:
        """Remember a new sequence. ValueError for ids outside the vocabulary."""
        params = sequence.sampling
        check_ids(sequence, self._vocab_size)
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
            bad_tokens=BadTokens(params.bad_token_sequences, output.tolist())
            if params.bad_token_sequences
            else None,
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

    def sample(
        self,
        slots: NDArray[np.int64],
        forward: Logits,
        masks: Mapping[int, NDArray[np.uint32]] | None = None,
    ) -> Sampled:
        """A token for each of the slots, which are those of the forward pass's sampling rows, in order.

        masks: by slot, what the step's masked slots may sample. ValueError for a mask that permits no token.
        """
        token_ids = forward.greedy().copy()
        masks = masks or _NO_MASKS
        if self._plain[slots].all() and not masks:
            return Sampled(token_ids, None)
        logits = forward.logits()
        asking = []
        for row, slot in enumerate(slots.tolist()):
            if not self._plain[slot]:
                asking.append((row, self._states[slot]))
            elif slot in masks:
                token_ids[row] = np.argmax(_permitted(logits[row].copy(), slot, masks))
        drawn: list[tuple[int, _SlotState, NDArray[np.float32]]] = []
        collector = LogprobCollector()
        processed: dict[int, NDArray[np.float32]] = {}
        for row, state in asking:
            assert state is not None
            adjusted = processed[row] = _adjusted(logits[row], state, int(slots[row]), masks)
            if state.params.temperature > 0.0:
                adjust.scale_and_filter(adjusted, state.params)
                drawn.append((row, state, adjusted))
            else:
                token_ids[row] = np.argmax(adjusted)
        self._draw_rows(drawn, token_ids)
        for row, state in asking:
            assert state is not None
            params, token_id = state.params, int(token_ids[row])
            if params.wants_logprobs:
                source = logits[row] if self._is_raw else processed[row]
                collector.add(row, source, token_id, params.num_logprobs or 0, params.logprob_token_ids)
            state.append(token_id)
        return Sampled(token_ids, collector.columns())

    def prompt_logprobs(self, batch: InputBatch, forward: Logits) -> PromptLogprobs | None:
        """Log-probabilities of the prompt tokens that this step brought. Called after `sample`."""
        return self._prompts.collect(batch, forward)

    def scores_prompt(self, slot: int) -> bool:
        """Whether tokens of the slot's prompt are still to be scored."""
        return self._prompts.follows(slot)

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


def check_ids(sequence: NewSequence, vocab_size: int) -> None:
    """ValueError if a sequence names or holds a token id outside the vocabulary."""
    params = sequence.sampling
    ids = (
        *params.logit_bias,
        *params.stop_token_ids,
        *params.allowed_token_ids,
        *params.logprob_token_ids,
        *(token_id for bad in params.bad_token_sequences for token_id in bad),
        *sequence.eos_token_ids,
    )
    tokens = np.asarray(sequence.token_ids)
    if any(not 0 <= token < vocab_size for token in ids) or not (
        tokens.min() >= 0 and tokens.max() < vocab_size
    ):
        raise ValueError(f"slot {sequence.slot}: a token id is outside 0..{vocab_size - 1}")


def _is_plain(params: SamplingParams) -> bool:
    return (
        params.temperature == 0.0
        and not params.wants_logprobs
        and params.min_tokens == 0
        and not params.logit_bias
        and not params.allowed_token_ids
        and not params.bad_token_sequences
        and not adjust.has_penalties(params)
    )


def _ids(values: object) -> NDArray[np.int64] | None:
    array = np.asarray(values, dtype=np.int64)
    return np.unique(array) if len(array) else None


def _permitted(
    row: NDArray[np.float32], slot: int, masks: Mapping[int, NDArray[np.uint32]]
) -> NDArray[np.float32]:
    """The row, in place, after its mask."""
    adjust.permit(row, masks[slot])
    if not np.isfinite(row.max()):
        raise ValueError(f"slot {slot}: its mask permits no token")
    return row


def _adjusted(
    raw: NDArray[np.float32], state: _SlotState, slot: int, masks: Mapping[int, NDArray[np.uint32]]
) -> NDArray[np.float32]:
    """A copy of a row after bias, penalties and masks. What the step's mask permits bounds all that follows."""
    row = raw.copy()
    adjust.add_bias(row, state.params)
    if state.counts is not None:
        state.counts.penalise(row, state.params)
    if slot in masks:
        _permitted(row, slot, masks)
    adjust.mask(row, state.allowed, state.forbidden)
    return row
