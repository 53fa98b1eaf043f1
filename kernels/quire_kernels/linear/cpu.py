"""The linear task: tiles of outputs are drawn by threads, rows walked within a tile.

Legend: x [rows, k], out [rows, n] float32, both with at least MAX_TILE_ROWS - 1 rows of room after the last one,
because the last tile is computed at full height and its surplus rows are dropped.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import atomic_add, float32_at, int64_at
from quire_kernels.cpu.layout import KINDS
from quire_kernels.cpu.math import silu
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import BoundTask, bound, task
from quire_kernels.cpu.tiles import make_panel, make_tile
from quire_kernels.linear.packing import PackedLinear

STORE, ADD, GATED_SILU = 0, 1, 2

_COLUMNS = TARGET.tile_columns
_LANES = TARGET.lanes
_MAX_ROWS = TARGET.max_tile_rows
_tile = make_tile(KINDS, TARGET.row_steps, 2)
_panel = make_panel(KINDS, 2)
# Tile height to use for so many rows.
_HEIGHT = np.array(
    [min(step for step in TARGET.row_steps if step >= rows) for rows in range(_MAX_ROWS + 1)], dtype=np.int64
)
# Work drawn at once: enough draws to balance, few enough not to contend.
_DRAWS_PER_THREAD = 8

(
    _ROWS, _X, _X_STRIDE, _WEIGHTS, _KIND, _K, _TILES, _TILE_BYTES, _OUT, _OUT_STRIDE, _EPILOGUE, _BIAS,
    _SCRATCH, _SCRATCH_BYTES,
) = range(14)  # fmt: skip


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def finish(epilogue, values, rows, out, out_stride, tile, bias):
    """Write a computed tile [rows, columns] at `values` to where it belongs."""
    source = float32_at(values)
    target = float32_at(out)
    column = tile * _COLUMNS
    for r in range(rows):
        at = r * out_stride
        if epilogue == GATED_SILU:
            for c in range(_LANES):
                target[at + tile * _LANES + c] = (
                    silu(source[r * _COLUMNS + c]) * source[r * _COLUMNS + _LANES + c]
                )
            continue
        if bias != 0:
            offsets = float32_at(bias)
            for c in range(_COLUMNS):
                source[r * _COLUMNS + c] += offsets[column + c]
        if epilogue == ADD:
            for c in range(_COLUMNS):
                target[at + column + c] += source[r * _COLUMNS + c]
        else:
            for c in range(_COLUMNS):
                target[at + column + c] = source[r * _COLUMNS + c]


@task
def linear_task(parameters, counter, thread, num_threads):
    """out (+)= x W^T for int64_at(p[_ROWS])[0] rows."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    if rows == 0:
        return
    k = p[_K]
    values = p[_SCRATCH] + thread * p[_SCRATCH_BYTES]
    expanded = values + 4 * _MAX_ROWS * _COLUMNS
    passes = (rows + _MAX_ROWS - 1) // _MAX_ROWS
    draw = max(1, p[_TILES] // (num_threads * _DRAWS_PER_THREAD))
    while True:
        first = atomic_add(counter, draw)
        if first >= p[_TILES]:
            break
        for tile in range(first, min(first + draw, p[_TILES])):
            kind = p[_KIND]
            weights = p[_WEIGHTS] + tile * p[_TILE_BYTES]
            if passes > 1 and kind != 0:
                _panel(kind, weights, k, expanded)
                weights = expanded
                kind = 0
            row = 0
            for done in range(passes):
                # Even heights: 32 rows are 12 + 10 + 10, not 14 + 14 and a thin rest.
                left = passes - done
                height = _HEIGHT[(rows - row + left - 1) // left]
                count = min(height, rows - row)
                x = p[_X] + 4 * row * p[_X_STRIDE]
                _tile(kind, height, weights, _COLUMNS, x, p[_X_STRIDE], k, values, _COLUMNS)
                out = p[_OUT] + 4 * row * p[_OUT_STRIDE]
                finish(p[_EPILOGUE], values, count, out, p[_OUT_STRIDE], tile, p[_BIAS])
                row += count


def scratch(num_threads: int, max_inputs: int) -> NDArray[np.uint8]:
    """Room for one tile and one expanded panel per thread, to be shared by all linear tasks of a program."""
    return zeros((num_threads, 4 * (_MAX_ROWS + max_inputs) * _COLUMNS), np.uint8)


def check_shapes(
    weights: PackedLinear, out: NDArray[np.float32], epilogue: int, bias: NDArray[np.float32] | None
) -> None:
    """ValueError if a product with these weights can't be written to out in this way."""
    if out.shape[1] < weights.padded_outputs:
        raise ValueError(
            f"out [.., {out.shape[1]}] is too narrow for a weight of {weights.padded_outputs} outputs"
        )
    if bias is not None and (bias.shape[0] < weights.padded_outputs or weights.gated):
        raise ValueError("a bias needs one value per padded output and a weight that is not gated")
    if weights.gated != (epilogue == GATED_SILU):
        raise ValueError("a gated weight needs the GATED_SILU epilogue, and only it")


def bind(
    weights: PackedLinear,
    x: NDArray[np.float32],
    out: NDArray[np.float32],
    num_rows: NDArray[np.int64],
    room: NDArray[np.uint8],
    *,
    epilogue: int = STORE,
    bias: NDArray[np.float32] | None = None,
) -> BoundTask:
    """A program step: out (+)= x W^T + bias for the first num_rows[0] rows.

    x: [at least rows + MAX_TILE_ROWS, >= k]; out the same, >= weights.padded_outputs wide; bias: padded as out is.
    epilogue: STORE, ADD to out, or GATED_SILU (weights packed gated): silu(gate) * up.
    """
    if x.shape[1] < weights.num_inputs:
        raise ValueError(f"x [.., {x.shape[1]}] is too narrow for a weight of {weights.num_inputs} inputs")
    check_shapes(weights, out, epilogue, bias)
    if room.shape[1] < 4 * (_MAX_ROWS + weights.num_inputs) * _COLUMNS:
        raise ValueError("the scratch room is too small for this weight's inner dimension")
    return bound(
        linear_task, num_rows, x, x.shape[1], weights.data, KINDS.index(weights.kind),
        weights.num_inputs, weights.num_tiles, weights.tile_bytes, out, out.shape[1], epilogue,
        bias, room, room.shape[1],
    )  # fmt: skip
