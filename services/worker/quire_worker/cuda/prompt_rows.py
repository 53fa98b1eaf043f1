"""Log-probabilities of prompts on the device path: what still waits for the device, in the steps of such prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.sampling.prompt_logprobs import PromptScorer
from quire_worker.step import NewSequence, PromptLogprobs


@dataclass(frozen=True, slots=True)
class _Step:
    """What PromptScorer reads of a step. slots, query_start_loc: of its rows; of_rows: logits of any of its tokens."""

    slots: NDArray[np.int64]
    query_start_loc: NDArray[np.int64]
    max_seqs: int
    of_rows: Callable[[NDArray[np.int32]], torch.Tensor]

    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of tokens of the step."""
        return self.of_rows(rows).float().cpu().numpy()


class PromptRows:
    """Follows the prompts that asked. One thread."""

    def __init__(self, max_rows: int) -> None:
        """max_rows: logits that are on the device at a time."""
        self._max_rows = max_rows
        self._scorer = PromptScorer()
        self._slots: set[int] = set()

    def admit(self, sequence: NewSequence) -> None:
        """Take a new sequence. ValueError if it asked and part of its prompt is computed already."""
        self._scorer.admit(sequence)
        if self._scorer.follows(sequence.slot):
            self._slots.add(sequence.slot)

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._scorer.forget(slot)
        self._slots.discard(slot)

    def forget_all(self) -> None:
        """All slots were released."""
        for slot in list(self._slots):
            self.forget(slot)

    def are_wanted(self, slots: Sequence[int]) -> bool:
        """Whether a step of these slots must keep the hidden states of all its rows."""
        return not self._slots.isdisjoint(slots)

    def collect(
        self,
        slots: NDArray[np.int64],
        query_start_loc: NDArray[np.int64],
        of_rows: Callable[[NDArray[np.int32]], torch.Tensor],
    ) -> PromptLogprobs | None:
        """Log-probabilities of the prompt tokens that this step brought."""
        step = _Step(slots, query_start_loc, self._max_rows, of_rows)
        found = self._scorer.collect(step, step)
        self._slots = {slot for slot in self._slots if self._scorer.follows(slot)}
        return found
