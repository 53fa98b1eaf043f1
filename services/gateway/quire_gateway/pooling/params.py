"""How a vector is made. Plain data that crosses to an engine; wire.py translates it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class PoolingTask(enum.Enum):
    """What a vector is for."""

    EMBED = "embed"
    CLASSIFY = "classify"
    TOKEN_EMBED = "token_embed"


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """Of one input.

    num_dimensions: values wanted of an embedding, the first ones; None: all. normalize: embeddings at length 1, classes
    through softmax or sigmoid; None: as the model's files say. second_text_start: index of the second
    text's first token.
    """

    task: PoolingTask
    num_dimensions: int | None = None
    normalize: bool | None = None
    second_text_start: int | None = None
