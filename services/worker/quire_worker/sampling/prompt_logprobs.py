"""Log-probabilities of prompt tokens, gathered over the steps of a chunked prefill and handed out once.

The logits of a step's prompt rows are computed a few rows at a time: never one matrix of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.input_batch import InputBatch
from quire_worker.sampling.logprobs import LogprobCollector
from quire_worker.step import LogprobColumns, NewSequence


class _LogitsOf(Protocol):
    def logits_of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Raw logits of any rows of the step."""
        ...


@dataclass(slots=True)
class _Prompt:
    """A prompt whose log-probabilities are being gathered; `next_position` is the next row to be seen."""

    token_ids: NDArray[np.int32]
    num_top: int
    next_position: int
    collector: LogprobCollector


class PromptLogprobs:
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
        self._prompts[sequence.slot] = _Prompt(tokens, num_top, 0, LogprobCollector())

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._prompts.pop(slot, None)

    def collect(self, batch: InputBatch, forward: _LogitsOf) -> Mapping[int, LogprobColumns]:
        """Take in the rows of the step just run; by slot, what is now complete."""
        if not self._prompts:
            return {}
        complete: dict[int, LogprobColumns] = {}
        for index, slot in enumerate(batch.slots.tolist()):
            prompt = self._prompts.get(slot)
            if prompt is None:
                continue
            first, last = batch.query_start_loc[index : index + 2].tolist()
            self._take(prompt, first, last, batch.max_seqs, forward)
            if prompt.next_position >= len(prompt.token_ids) - 1:
                columns = prompt.collector.columns()
                if columns is not None:
                    complete[slot] = columns
                del self._prompts[slot]
        return complete

    def _take(self, prompt: _Prompt, first: int, last: int, max_rows: int, forward: _LogitsOf) -> None:
        wanted = min(last - first, len(prompt.token_ids) - 1 - prompt.next_position)
        for start in range(0, wanted, max_rows):
            count = min(max_rows, wanted - start)
            rows = np.arange(first + start, first + start + count, dtype=np.int32)
            for logits in forward.logits_of(rows):
                position = prompt.next_position
                prompt.collector.add(position, logits, int(prompt.token_ids[position + 1]), prompt.num_top)
                prompt.next_position += 1
