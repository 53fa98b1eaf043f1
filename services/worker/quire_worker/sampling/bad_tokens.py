"""Token sequences that must not occur in an output: which tokens can't come next. Knows no logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class BadTokens:
    """Follows one sequence's output. A prompt's tokens take no part: a sequence must lie wholly in the output."""

    def __init__(self, sequences: Sequence[Sequence[int]], output: Sequence[int]) -> None:
        """sequences: at least one token each. output: what the output holds already."""
        self._always = sorted({sequence[-1] for sequence in sequences if len(sequence) == 1})
        self._sequences = [tuple(sequence) for sequence in sequences if len(sequence) > 1]
        self._num_kept = max((len(sequence) - 1 for sequence in self._sequences), default=0)
        self._tail = list(output[-self._num_kept :]) if self._num_kept else []

    def add(self, token_id: int) -> None:
        """One more output token."""
        if self._num_kept:
            self._tail.append(token_id)
            del self._tail[: -self._num_kept]

    def forbidden(self) -> NDArray[np.int64]:
        """Ids that would complete one of the sequences now."""
        ids = list(self._always)
        for sequence in self._sequences:
            before = sequence[:-1]
            if len(before) <= len(self._tail) and tuple(self._tail[-len(before) :]) == before:
                ids.append(sequence[-1])
        return np.array(ids, dtype=np.int64)
