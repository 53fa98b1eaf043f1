"""sample_tokens in plain numpy, row by row."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from quire_kernels.gumbel_argmax.reference import gumbel_argmax_reference


def filter_reference(
    row: NDArray[np.float32], *, min_p: float, top_k: int, top_p: float
) -> NDArray[np.float32]:
    """row [V], scaled, with -inf for what min_p, top_k and top_p, in this order, leave out."""
    row = row.copy()
    if min_p > 0.0:
        row[row < row.max() + np.float32(math.log(min_p))] = -np.inf
    if 0 < top_k < len(row):
        row[row < np.sort(row)[-top_k]] = -np.inf
    if top_p < 1.0:
        descending = np.sort(row[np.isfinite(row)])[::-1]
        mass = np.cumsum(np.exp((descending - descending[0]).astype(np.float64)))
        row[
            row < descending[min(int(np.searchsorted(mass, top_p * mass[-1])), len(descending) - 1)]
        ] = -np.inf
    return row


def sample_reference(
    logits: torch.Tensor,
    *,
    temperature: float,
    min_p: float,
    top_k: int,
    top_p: float,
    seed: int,
    sequence_index: int,
    position: int,
) -> int:
    """The token of one row of logits [V]."""
    row = logits.float().cpu().numpy()
    if temperature == 0.0:
        return int(row.argmax())
    scaled = (row / np.float32(temperature)).astype(np.float32)
    kept = filter_reference(scaled, min_p=min_p, top_k=top_k, top_p=top_p)
    return gumbel_argmax_reference(kept, seed % (1 << 64), sequence_index, position)
