"""From hidden states to the vector that is answered: pooling, cutting, scaling, activations. Plain numpy."""

from __future__ import annotations

from typing import Literal

import numpy as np

from quire_worker.pooling.params import PoolingMethod, PoolingParams, Vector

Activation = Literal["softmax", "sigmoid", "none"]


def pooled(hidden: Vector, method: PoolingMethod) -> Vector:
    """One row of [num_tokens, hidden_size]: the mean of all, the first or the last."""
    if method is PoolingMethod.CLS:
        row = hidden[0]
    elif method is PoolingMethod.LAST:
        row = hidden[-1]
    else:
        row = hidden.mean(axis=0, dtype=np.float32)
    return np.asarray(row, dtype=np.float32)


def embedding(rows: Vector, params: PoolingParams, *, normalize: bool) -> Vector:
    """Embeddings as they are answered: [num_values] of `rows` [hidden_size] or [num_tokens, hidden_size], each cut to
    the wanted dimensions and then scaled to length 1, if wanted. normalize: the model's default."""
    cut = np.asarray(rows[..., : params.num_dimensions], dtype=np.float32)
    if normalize if params.normalize is None else params.normalize:
        # As torch's normalize: a vector of zeros stays one.
        lengths = np.sqrt((cut.astype(np.float64) ** 2).sum(axis=-1, keepdims=True))
        cut = (cut / np.maximum(lengths, 1e-12)).astype(np.float32)
    return np.ascontiguousarray(cut).reshape(-1)


def class_values(logits: Vector, params: PoolingParams, activation: Activation) -> Vector:
    """Values of classes [num_labels] of their logits. activation: the model's, for requests that do not say; where they
    ask for one and the model has none, a single value goes through the sigmoid and several through the softmax."""
    if params.normalize is False:
        return logits
    if params.normalize and activation == "none":
        activation = "softmax" if len(logits) > 1 else "sigmoid"
    if activation == "softmax":
        grown = np.exp(logits - logits.max())
        return np.asarray(grown / grown.sum(), dtype=np.float32)
    if activation == "sigmoid":
        return np.asarray(1.0 / (1.0 + np.exp(-logits)), dtype=np.float32)
    return logits
