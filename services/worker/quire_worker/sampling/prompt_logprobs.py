"""Log-probabilities of prompt tokens, as the chunks of a prefill come by.

The logits of a step's prompt rows are computed a few rows at a time: never one matrix of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.sampling.logprobs import LogprobCollector
from quire_worker.step import NewSequence, PromptLogprobs


class _Rows(Protocol):
    """Which rows of the step are whose; see InputBatch."""

    @property
    def slots(self) -> NDArray[np.int64]:
        """Of the step's sequences."""
        ...

    @property
    def query_start_loc(self) -> NDArray[Any]:
        """Where each sequence's rows begin, and the end."""
        ...

    @property
    def max_seqs(self) -> int:
        """Rows whose logits may be asked for at once."""
        ...


class _LogitsOf(Protocol):
    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of any rows of the step."""
        ...


@dataclass(slots=True)
class _Prompt:
    """A prompt whose log-probabilities are wanted; `next_position` is the next row to be seen."""

    token_ids: NDArray[np.int32]
    num_top: int
    next_position: int

    @property
    def num_left(self) -> int:
        """Tokens that are still to come: the first one has none."""
        return len(self.token_ids) - 1 - self.next_position


class _Found:
    """What one step brought."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.positions: list[int] = []
        self.collector = LogprobCollector()


class PromptScorer:
    """Follows the prompts that asked. Their prefix must not come from the prefix cache: computed rows alone count."""

    def __init__(self) -> None:
        self._prompts: dict[int, _Prompt] = {}

    def admit(self, sequence: NewSequence) -> None:
        """Follow a sequence if it asked. ValueError if part of its prompt is computed already."""
        num_top = sequence.sampling.num_prompt_logprobs
        if num_top is None:
            return
        if sequence.num_computed_tokens:
            raise ValueError(
                f"slot {sequence.slot}: prompt log-probabilities need an uncomputed prompt, "
                f"{sequence.num_computed_tokens} tokens are computed"
            )
        tokens = np.asarray(sequence.token_ids[: sequence.num_prompt_tokens], dtype=np.int32)
        if len(tokens) > 1:
            self._prompts[sequence.slot] = _Prompt(tokens, num_top, 0)

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._prompts.pop(slot, None)

    def follows(self, slot: int) -> bool:
        """Whether tokens of the slot's prompt are still to be scored."""
        return slot in self._prompts

    def collect(self, batch: _Rows, forward: _LogitsOf) -> PromptLogprobs | None:
        """What the rows of the step just run say; each position of a prompt comes once, in order."""
        if not self._prompts:
            return None
        found = _Found()
        for index, slot in enumerate(batch.slots.tolist()):
            prompt = self._prompts.get(slot)
            if prompt is None:
                continue
            first, last = batch.query_start_loc[index : index + 2].tolist()
            self._take(found, slot, prompt, np.arange(first, last, dtype=np.int32), batch.max_seqs, forward)
            if not prompt.num_left:
                del self._prompts[slot]
        columns = found.collector.columns()
        return None if columns is None else PromptLogprobs(found.slots, found.positions, columns)

    @staticmethod
    def _take(
        found: _Found, slot: int, prompt: _Prompt, rows: NDArray[np.int32], max_rows: int, forward: _LogitsOf
    ) -> None:
        rows = rows[: prompt.num_left]
        for start in range(0, len(rows), max_rows):
            for logits in forward.logits_of(rows[start : start + max_rows]):
                prompt.next_position += 1
                found.slots.append(slot)
                found.positions.append(prompt.next_position)
                token_id = int(prompt.token_ids[prompt.next_position])
                found.collector.add(None, logits, token_id, prompt.num_top)
