"""Which rows of a decode step begin with the same blocks, so that attention can read these once for all of them.

Works on the host's tables; found anew only when the step's sequences change. Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quire_worker.cuda.columns import StepColumns
from quire_worker.slots import SlotTables

# Below either of these, a second launch in every layer costs more than the tokens that are read once.
MIN_ROWS: Final = 16
MIN_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """num_tokens: a multiple of the block size; rows: which rows of the step have them, ascending."""

    num_tokens: int
    rows: NDArray[np.int64]


class PrefixFinder:
    """Looks for the prefix of the largest group of rows that share their first block. One thread."""

    def __init__(self, tables: SlotTables) -> None:
        self._tables = tables
        self._slots = b""
        self._found: SharedPrefix | None = None

    def forget(self) -> None:
        """Slots have changed hands."""
        self._slots = b""

    def find(self, columns: StepColumns) -> SharedPrefix | None:
        """For a step whose rows compute one token each."""
        if len(columns.slots) < MIN_ROWS:
            return None
        slots = columns.slots.tobytes()
        if slots != self._slots:
            self._slots, self._found = slots, self._search(columns)
        return self._found

    def _search(self, columns: StepColumns) -> SharedPrefix | None:
        tables, size = self._tables.block_table, self._tables.limits.block_size
        first = tables[columns.slots, 0]
        blocks, counts = np.unique(first, return_counts=True)
        rows = np.flatnonzero(first == blocks[np.argmax(counts)])
        # Blocks that hold computed tokens of every one of them; what is behind these in a table may be of older ones.
        whole = int(columns.starts[rows].min()) // size
        if len(rows) < MIN_ROWS or whole * size < MIN_TOKENS:
            return None
        held = tables[columns.slots[rows], :whole]
        differs = np.flatnonzero((held != held[0]).any(axis=0))
        num_tokens = (int(differs[0]) if len(differs) else whole) * size
        return SharedPrefix(num_tokens, rows) if num_tokens >= MIN_TOKENS else None
