"""The same draw in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire_kernels.gumbel_argmax.random import random_words, uniforms


def gumbel_argmax_reference(
    logits: NDArray[np.float32], seed: int, sequence_index: int, position: int
) -> int:
    """A token id drawn from softmax(logits [vocabulary])."""
    u = uniforms(random_words(seed, sequence_index, position, len(logits))).astype(np.float64)
    with np.errstate(divide="ignore"):
        exponentials = np.where(u < 1.0, -np.log1p(-np.minimum(u, 1.0)), 100.0)
    return int(np.argmax(logits - np.log(exponentials)))
