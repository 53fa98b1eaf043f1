"""The vocabulary between the decoder and whatever runs it. Values and weights are opaque to the decoder.

An implementation decides what a Weight and a Value are: the eager one uses tensors; the program one records each
operation once against fixed buffers and replays the recording at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows

Weight = Any
Vector = Any
Value = Any


class Placement(Protocol):
    """Puts weights, as the loader reads them, straight where the operations will read them."""

    def fused(self, parts: Sequence[WeightRows]) -> Weight:
        """One matrix of several, one above the other."""
        ...

    def gated(self, gate: WeightRows, up: WeightRows) -> Weight:
        """A gate and an up projection for `gated_mlp`."""
        ...

    def vector(self, values: NDArray[np.float32]) -> Vector:
        """A norm weight or a bias."""
        ...


class Operations(Protocol):
    """What a decoder does to the tokens of a step. Rows are tokens; rows of `select` are the sampling ones."""

    def embed(self, table: Weight) -> Value:
        """Embeddings of the step's token ids."""
        ...

    def norm(self, x: Value, weight: Vector) -> Value:
        """RMS norm of every row."""
        ...

    def linear(self, x: Value, weight: Weight, bias: Vector | None = None) -> Value:
        """x W^T + bias."""
        ...

    def gated_mlp(self, x: Value, weight: Weight) -> Value:
        """silu(x G^T) * (x U^T)."""
        ...

    def add_linear(self, residual: Value, x: Value, weight: Weight, bias: Vector | None = None) -> Value:
        """residual + x W^T + bias; the residual may be overwritten."""
        ...

    def attention(self, layer: int, qkv: Value, q_norm: Vector | None, k_norm: Vector | None) -> Value:
        """Rotate, write keys and values to the layer's blocks, attend. qkv may be overwritten."""
        ...
