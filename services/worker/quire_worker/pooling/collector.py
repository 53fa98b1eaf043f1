"""Makes vectors of a decoder's sequences: gathers hidden states chunk by chunk until a sequence's last token.

Knows the runner's batch and where hidden states come from; not how they are computed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire_worker.input_batch import InputBatch
from quire_worker.pooling.params import PooledVectors, PoolingDefaults, PoolingMethod, PoolingTask, Vector
from quire_worker.pooling.vectors import embedding
from quire_worker.slots import SlotTables
from quire_worker.step import NewSequence


class HiddenStates(Protocol):
    """A forward pass whose hidden states can be read."""

    def hidden_of(self, rows: NDArray[np.int32]) -> Vector:
        """Hidden states behind the final norm of any token rows of the step just run, [num_rows, hidden_size]."""
        ...


class PoolingCollector:
    """The pooled sequences among a runner's slots. Sequences that generate cost it nothing."""

    def __init__(self, defaults: PoolingDefaults | None) -> None:
        """defaults: how the model makes embeddings; None: it is not served for them."""
        self._defaults = defaults
        # Per slot: what its chunks so far have brought: running sum (mean) or the rows (one embedding per token).
        self._sums: dict[int, Vector] = {}
        self._rows: dict[int, list[Vector]] = {}

    def admit(self, sequence: NewSequence) -> None:
        """A pooled sequence was placed. ValueError: the model does not make what it asks for."""
        if sequence.pooling is None:
            return
        if self._defaults is None or sequence.pooling.task is PoolingTask.CLASSIFY:
            raise ValueError(
                f"slot {sequence.slot}: this model does not make {sequence.pooling.task.name} vectors"
            )
        if sequence.num_computed_tokens:
            raise ValueError(
                f"slot {sequence.slot}: a vector of all tokens, but {sequence.num_computed_tokens} are computed already"
            )
        self.forget(sequence.slot)

    def forget(self, slot: int) -> None:
        """The slot was released."""
        self._sums.pop(slot, None)
        self._rows.pop(slot, None)

    def collect(self, batch: InputBatch, tables: SlotTables, forward: HiddenStates) -> PooledVectors | None:
        """Take in the step's hidden states; the vectors of the sequences it completed, None if there are none."""
        found = PooledVectors([], [])
        starts = batch.query_start_loc
        for index in np.flatnonzero(tables.is_pooled[batch.slots]):
            slot = int(batch.slots[index])
            rows = np.arange(starts[index], starts[index + 1], dtype=np.int32)
            is_complete = bool(tables.num_computed_tokens[slot] == tables.num_tokens[slot])
            vector = self._advance(slot, tables, rows, forward, is_complete=is_complete)
            if vector is not None:
                found.slots.append(slot)
                found.vectors.append(vector)
        return found if found.slots else None

    def _advance(
        self,
        slot: int,
        tables: SlotTables,
        rows: NDArray[np.int32],
        forward: HiddenStates,
        *,
        is_complete: bool,
    ) -> Vector | None:
        sequence, defaults = tables.sequences[slot], self._defaults
        assert sequence is not None and sequence.pooling is not None and defaults is not None
        params = sequence.pooling
        if params.task is PoolingTask.TOKEN_EMBED:
            kept = self._rows.setdefault(slot, [])
            kept.append(np.array(forward.hidden_of(rows)))
            result = np.concatenate(kept) if is_complete else None
        elif defaults.method is PoolingMethod.MEAN:
            total = forward.hidden_of(rows).sum(axis=0, dtype=np.float64)
            total += self._sums.get(slot, 0.0)
            self._sums[slot] = total
            result = (total / tables.num_tokens[slot]).astype(np.float32) if is_complete else None
        elif defaults.method is PoolingMethod.CLS:
            if slot not in self._sums:
                self._sums[slot] = np.array(forward.hidden_of(rows[:1])[0])
            result = self._sums[slot] if is_complete else None
        else:
            result = forward.hidden_of(rows[-1:])[0] if is_complete else None
        if result is None:
            return None
        self.forget(slot)
        return embedding(result, params, normalize=defaults.normalize)
