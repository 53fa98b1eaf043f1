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


def address(array: NDArray[Any] | None) -> int:
    """Address of an array's first element; 0 for None. The caller keeps the array alive."""
    if array is None:
        return 0
    if not array.flags.c_contiguous:
        raise ValueError("a kernel needs a C-contiguous array")
    return int(array.ctypes.data)


def record(*values: int | float) -> NDArray[np.int64]:
    """A task's parameters; floats are stored as the bits of a float64."""
    words = np.zeros(len(values), dtype=np.int64)
    for index, value in enumerate(values):
        words[index] = np.float64(value).view(np.int64) if isinstance(value, float) else value
    return words
