"""Log-probabilities of a row of logits, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire_worker.step import LogprobColumns


class LogprobCollector:
    """Gathers entries of LogprobColumns."""

    def __init__(self) -> None:
        self._columns = LogprobColumns([], [], [], [], [], [])

    def add(
        self,
        row_index: int | None,
        logits: NDArray[np.float32],
        token_id: int,
        num_top: int,
        chosen_ids: Sequence[int] = (),
    ) -> None:
        """The entry of one token: its log-probability and rank, and the `num_top` most probable tokens, or just
        `chosen_ids` in their order where there are any. row_index: None leaves the column `rows` empty."""
        columns = self._columns
        peak = logits.max()
        normaliser = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
        if row_index is not None:
            columns.rows.append(row_index)
        columns.logprobs.append(float(logits[token_id]) - normaliser)
        columns.ranks.append(int(np.count_nonzero(logits > logits[token_id])) + 1)
        top = np.asarray(chosen_ids, dtype=np.int64) if chosen_ids else _largest(logits, num_top)
        columns.num_top.append(len(top))
        columns.top_token_ids.extend(top.tolist())
        columns.top_logprobs.extend((logits[top].astype(np.float64) - normaliser).tolist())

    def columns(self) -> LogprobColumns | None:
        """What was gathered; None if nothing was."""
        return self._columns if self._columns.logprobs else None


def _largest(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the largest logits, descending; among equals the smaller id first."""
    count = min(count, len(logits))
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    threshold = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= threshold)
    return ids[np.lexsort((ids, -logits[ids]))][:count]
