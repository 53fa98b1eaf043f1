"""A tensor source that counts the weights read through it, for the model's description."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows
from quire_worker.loading.source import TensorSource


class CountingSource:
    """See TensorSource; `num_parameters` grows as tensors are read."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self.num_parameters = 0

    @property
    def total_bytes(self) -> int:
        """See TensorSource."""
        return self._source.total_bytes

    def names(self) -> Iterable[str]:
        """See TensorSource."""
        return self._source.names()

    def num_bytes(self, name: str) -> int:
        """See TensorSource."""
        return self._source.num_bytes(name)

    def matrix(self, name: str) -> WeightRows:
        """See TensorSource."""
        rows = self._source.matrix(name)
        self.num_parameters += rows.num_outputs * rows.num_inputs
        return rows

    def vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        values = self._source.vector(name)
        self.num_parameters += len(values)
        return values
