"""Aligned, lazily zeroed memory for kernels, as numpy arrays whose addresses do not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_ALIGNMENT = 64


def zeros(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Zeroed array on a cache-line boundary. Pages become resident only when they are written."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return raw[skip : skip + size].view(dtype).reshape(shape)
