"""The argmax task: rows are drawn by threads; the first of equal maxima wins."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import atomic_add, float32_at, int32_at, int64_at
from quire_kernels.cpu.team import BoundTask, bound, task

# Values whose maximum is taken at once; only the best piece is searched for the index.
_PIECE = 1024
_ROWS, _X, _STRIDE, _SIZE, _OUT = range(5)


@njit(error_model="numpy", fastmath={"nnan", "nsz", "reassoc"})
def _max(values, low, high):
    best = values[low]
    for i in range(low + 1, high):
        best = max(best, values[i])
    return best


@task
def argmax_task(parameters, counter, thread, num_threads):
    """out[i] = argmax(x[i]) for int64_at(p[_ROWS])[0] rows."""
    p = int64_at(parameters)
    rows, size = int64_at(p[_ROWS])[0], p[_SIZE]
    while True:
        row = atomic_add(counter, 1)
        if row >= rows:
            break
        values = float32_at(p[_X] + 4 * row * p[_STRIDE])
        best, place = values[0], 0
        for low in range(0, size, _PIECE):
            value = _max(values, low, min(low + _PIECE, size))
            if value > best:
                best, place = value, low
        index = place
        for i in range(place, min(place + _PIECE, size)):
            if values[i] == best:
                index = i
                break
        int32_at(p[_OUT])[row] = np.int32(index)


def bind(x: NDArray[np.float32], size: int, out: NDArray[np.int32], num_rows: NDArray[np.int64]) -> BoundTask:
    """A program step: index of the largest of the first `size` values of each of the first num_rows[0] rows of x."""
    if not 0 < size <= x.shape[1]:
        raise ValueError(f"size must be in 1..{x.shape[1]}, got {size}")
    return bound(argmax_task, num_rows, x, x.shape[1], size, out)
