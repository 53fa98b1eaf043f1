"""What changes a row of logits before the draw: bias, penalties, masks, temperature, filters. Plain numpy on one row.

Every function works on one row alone, so that no row's result depends on what else is in the batch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quire_worker.step import SamplingParams

Row = NDArray[np.float32]
MASKED = np.float32(-np.inf)
_NUCLEUS_GUESS = 1024


class TokenCounts:
    """How often each token id is in a sequence's output, and whether it is in its prompt; kept as tokens come."""

    def __init__(self, vocab_size: int, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        self._output = np.zeros(vocab_size, dtype=np.int32)
        self._seen = np.zeros(vocab_size, dtype=bool)
        self._seen[prompt] = True
        self._seen[output] = True
        np.add.at(self._output, output, 1)

    def add(self, token_id: int) -> None:
        """One more output token."""
        self._output[token_id] += 1
        self._seen[token_id] = True

    def penalise(self, row: Row, params: SamplingParams) -> None:
        """repetition_penalty on prompt and output, then frequency and presence penalties on the output, in place."""
        if params.repetition_penalty != 1.0:
            ids = np.flatnonzero(self._seen)
            values, factor = row[ids], np.float32(params.repetition_penalty)
            row[ids] = np.where(values > 0, values / factor, values * factor)
        if params.frequency_penalty or params.presence_penalty:
            ids = np.flatnonzero(self._output)
            row[ids] -= np.float32(params.frequency_penalty) * self._output[ids].astype(np.float32)
            row[ids] -= np.float32(params.presence_penalty)


def has_penalties(params: SamplingParams) -> bool:
    """Whether token counts are needed."""
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0)


def add_bias(row: Row, params: SamplingParams) -> None:
    """logit_bias, in place."""
    for token_id, bias in params.logit_bias.items():
        row[token_id] += np.float32(bias)


def mask(row: Row, allowed: NDArray[np.int64] | None, forbidden: NDArray[np.int64] | None) -> None:
    """Leave only `allowed`, and of these not `forbidden`, unless that would leave nothing at all. In place."""
    if allowed is not None:
        kept = row[allowed]
        row[:] = MASKED
        row[allowed] = kept
    if forbidden is not None:
        before = row[forbidden]
        row[forbidden] = MASKED
        if not np.isfinite(row.max()):
            row[forbidden] = before


def permit(row: Row, words: NDArray[np.uint32]) -> None:
    """Leave only what a mask permits (see masks.py). In place."""
    bits = np.unpackbits(words.view(np.uint8), count=len(row), bitorder="little")
    row[bits == 0] = MASKED


def scale_and_filter(row: Row, params: SamplingParams) -> None:
    """Temperature, then min_p, top_k and top_p in this order, each on what the one before left. In place.

    Tokens as probable as the last one kept are kept too, so that the result depends on no order of equals.
    """
    row /= np.float32(params.temperature)
    if params.min_p > 0.0:
        row[row < row.max() + np.float32(math.log(params.min_p))] = MASKED
    if 0 < params.top_k < len(row):
        row[row < np.partition(row, -params.top_k)[-params.top_k]] = MASKED
    if params.top_p < 1.0:
        row[row < _nucleus_threshold(row, params.top_p)] = MASKED


def _nucleus_threshold(row: Row, top_p: float) -> np.float32:
    """Logit of the least probable token of the smallest set whose probability reaches top_p."""
    peak = row.max()
    wanted = top_p * float(np.exp(row - peak).sum(dtype=np.float64))
    # The nucleus is nearly always among the few most probable tokens; sorting the vocabulary is the exception.
    for count in (min(_NUCLEUS_GUESS, len(row)), len(row)):
        descending = np.sort(np.partition(row, -count)[-count:])[::-1]
        mass = np.cumsum(np.exp((descending - peak).astype(np.float64)))
        if mass[-1] >= wanted:
            break
    return np.float32(descending[min(int(np.searchsorted(mass, wanted)), count - 1)])
