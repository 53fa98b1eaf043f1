"""The RMS norm task: out[i] = x[row(i)] / sqrt(mean(x[row(i)]^2) + eps) * weight, rows split evenly over threads."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import float32_at, float64_of_bits, int32_at, int64_at
from quire_kernels.cpu.team import BoundTask, bound, task

_ROWS, _X, _X_STRIDE, _WEIGHT, _SIZE, _EPS, _OUT, _OUT_STRIDE, _SELECTION = range(9)


@task
def rms_norm_task(parameters, counter, thread, num_threads):
    """Normalise int64_at(p[_ROWS])[0] rows."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    weight = float32_at(p[_WEIGHT])
    size = p[_SIZE]
    eps = np.float32(float64_of_bits(p[_EPS]))
    for index in range(thread * rows // num_threads, (thread + 1) * rows // num_threads):
        row = index
        if p[_SELECTION] != 0:
            row = np.int64(int32_at(p[_SELECTION])[index])
        x = float32_at(p[_X] + 4 * row * p[_X_STRIDE])
        out = float32_at(p[_OUT] + 4 * index * p[_OUT_STRIDE])
        total = np.float32(0.0)
        for i in range(size):
            total += x[i] * x[i]
        scale = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(size) + eps))
        for i in range(size):
            out[i] = x[i] * scale * weight[i]


def bind(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    out: NDArray[np.float32],
    num_rows: NDArray[np.int64],
    *,
    selection: NDArray[np.int32] | None = None,
) -> BoundTask:
    """A program step over the first num_rows[0] rows of x, or over those that `selection` names.

    x, out: [rows, >= size] with size = len(weight); they may be the same array if nothing is selected.
    """
    size = weight.shape[0]
    if x.shape[1] < size or out.shape[1] < size:
        raise ValueError(
            f"x [.., {x.shape[1]}] and out [.., {out.shape[1]}] are narrower than the weight, {size}"
        )
    return bound(
        rms_norm_task, num_rows, x, x.shape[1], weight, size, float(eps), out, out.shape[1],
        selection,
    )  # fmt: skip
