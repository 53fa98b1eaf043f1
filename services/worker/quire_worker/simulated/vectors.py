"""Deterministic vectors: what a simulated sequence answers for its tokens. Knows nothing of steps or slots."""

from __future__ import annotations

import numpy as np

from quire_worker.pooling.params import PoolingParams, PoolingTask, Vector
from quire_worker.pooling.vectors import embedding
from quire_worker.simulated.tokens import token_ids_at

_RANGE = 1 << 20


def simulated_vector(params: PoolingParams, prefix_hash: int, num_tokens: int, size: int) -> Vector:
    """A vector that depends on the tokens (their hash) alone: of length 1 unless the request says otherwise.

    Classes: one value between 0 and 1. One embedding per token: num_tokens of them, one after the other.
    """
    if params.task is PoolingTask.CLASSIFY:
        return np.asarray((_numbers(prefix_hash, 1) + 1) / 2, dtype=np.float32)
    if params.task is PoolingTask.EMBED:
        return embedding(_numbers(prefix_hash, size), params, normalize=True)
    rows = _numbers(prefix_hash, num_tokens * size).reshape(num_tokens, size)
    return embedding(rows, params, normalize=True)


def _numbers(prefix_hash: int, count: int) -> Vector:
    """`count` numbers in [-1, 1)."""
    keys = np.full(count, prefix_hash, dtype=np.uint64)
    values = token_ids_at(keys, np.arange(count, dtype=np.uint64), 0, _RANGE)
    return (values / (_RANGE / 2) - 1).astype(np.float32)
