"""What a pooled sequence asks for and what it answers, as plain data. Knows neither models nor protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class PoolingTask(IntEnum):
    """What a vector is for; the numbers are those of the contract's enum."""

    EMBED = 1
    CLASSIFY = 2
    TOKEN_EMBED = 3


class PoolingMethod(Enum):
    """Which hidden states become a text's embedding."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a sequence's vector is made.

    num_dimensions: values wanted of an embedding, the first ones; None: all. normalize: embeddings are scaled to length
    1, values of classes go through the model's activation; None: as the model's files say. second_text_start: index of
    the first token of the second text; None: one text.
    """

    task: PoolingTask
    num_dimensions: int | None = None
    normalize: bool | None = None
    second_text_start: int | None = None


@dataclass(frozen=True, slots=True)
class PooledVectors:
    """Vectors of the sequences that a step completed. slots, vectors: parallel; each vector is one-dimensional."""

    slots: list[int]
    vectors: list[Vector]


@dataclass(frozen=True, slots=True)
class PoolingDefaults:
    """How a model makes embeddings unless a request says otherwise."""

    method: PoolingMethod
    normalize: bool = True
