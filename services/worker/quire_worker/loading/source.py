"""What a loader gives the decoder: weights by their Hugging Face names, as rows that are not yet placed anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows


class TensorSource(Protocol):
    """Named tensors of a model. Reading one touches its bytes only; nothing is held twice."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors in the files, for progress."""
        ...

    def names(self) -> Iterable[str]:
        """Hugging Face names of the tensors."""
        ...

    def matrix(self, name: str) -> WeightRows:
        """A matrix [outputs, inputs]. KeyError if there is none of that name."""
        ...

    def vector(self, name: str) -> NDArray[np.float32]:
        """A vector in float32. KeyError if there is none of that name."""
        ...

    def num_bytes(self, name: str) -> int:
        """Bytes of a tensor in the files."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An opened model.

    config: as Hugging Face's config.json. generation_config: as generation_config.json, {} if there is none.
    identity: names and sizes of the files, for the fingerprint.
    """

    path: str
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    source: TensorSource
    identity: tuple[tuple[str, int], ...] = field(default=())
