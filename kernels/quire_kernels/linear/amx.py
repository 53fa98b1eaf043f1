"""The linear task on matrix tiles, for quantised weights: their integers are exact in bfloat16, and so are three
bfloat16 parts of a float32 activation, so that products are exact and sums are float32.

    out[r, n] (+)= sum over blocks b of (scale[n, b] * sum over k of x[r, k] q[n, k] + minimum[n, b] * sum of x[r, b])

A row's result is the same bits whatever rows are computed beside it: no sum crosses rows, and its order is fixed.
Importing it raises ImportError where quire_kernels.cpu.amx.has_amx() is false: other processors can't even compile it.

Legend: as linear/cpu.py and split_bfloat16/cpu.py; a group is the passes whose parts stay in the second-level cache
while tiles of weights go by.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu import amx
from quire_kernels.cpu.intrinsics import atomic_add, float32_at, int64_at
from quire_kernels.cpu.layout import KINDS, QUANT_BLOCK, tile_bytes
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import BoundTask, bound, task
from quire_kernels.cpu.tiles import make_tile
from quire_kernels.linear.cpu import check_shapes, finish
from quire_kernels.linear.packing import PackedLinear
from quire_kernels.split_bfloat16.cpu import SplitRows, pass_rows

if not amx.has_amx():
    raise ImportError("this process may not use matrix tiles")

AMX_KINDS = ("q8_0", "q4_1")

_COLUMNS = TARGET.tile_columns
_MAX_ROWS = TARGET.max_tile_rows
_minima_tile = make_tile(("f32",), TARGET.row_steps, 2)
_HEIGHT = np.array(
    [min(step for step in TARGET.row_steps if step >= rows) for rows in range(_MAX_ROWS + 1)], dtype=np.int64
)
_Q4_1 = KINDS.index("q4_1")
_DRAWS_PER_THREAD = 8
# Blocks whose expanded weights (2 KiB each) stay in the first-level cache while passes go by.
_CHUNK = 6
# Bytes of activations that stay in the second-level cache.
_GROUP_BYTES = 1 << 20
# Where a thread's scratch has what, in bytes: tile configuration, sums of two blocks, expanded weights, minima, totals.
_SUMS_AT = amx.CONFIG_BYTES
_QUANTS_AT = _SUMS_AT + 2 * amx.SUMS_BYTES
_MINIMA_AT = _QUANTS_AT + _CHUNK * amx.QUANTS_BLOCK_BYTES

(
    _ROWS, _PARTS, _BLOCK_SUMS, _BLOCK_SUMS_STRIDE, _WEIGHTS, _KIND, _K, _TILES, _TILE_BYTES, _BLOCK_BYTES, _OUT,
    _OUT_STRIDE, _EPILOGUE, _BIAS, _SCRATCH, _SCRATCH_BYTES,
) = range(16)  # fmt: skip


@njit(inline="always")
def _multiply_pass(height, parts, weights, block_bytes, blocks, room, totals):
    """totals [height, C] += one pass of rows times `blocks` expanded blocks. The tiles work on a block while vectors
    scale the one before it."""
    quants, sums = room + _QUANTS_AT, room + _SUMS_AT
    amx.multiply_block(parts, quants, sums)
    for block in range(1, blocks):
        amx.multiply_block(
            parts + block * amx.ROW_BLOCK_BYTES, quants + block * amx.QUANTS_BLOCK_BYTES,
            sums + (block & 1) * amx.SUMS_BYTES,
        )  # fmt: skip
        done = block - 1
        amx.add_scaled(height, sums + (done & 1) * amx.SUMS_BYTES, weights + done * block_bytes, totals)
    done = blocks - 1
    amx.add_scaled(height, sums + (done & 1) * amx.SUMS_BYTES, weights + done * block_bytes, totals)


@njit(error_model="numpy")
def _start_totals(p, weights, blocks, first_row, rows, minima, totals):
    """totals [rows, C] = what the minima of the blocks contribute, which only q4_1 has."""
    if p[_KIND] != _Q4_1:
        values = float32_at(totals)
        for i in range(rows * _COLUMNS):
            values[i] = np.float32(0.0)
        return
    amx.expand_minima_q4_1(weights, blocks, minima)
    row = 0
    while row < rows:
        height = _HEIGHT[min(_MAX_ROWS, rows - row)]
        sums = p[_BLOCK_SUMS] + 4 * (first_row + row) * p[_BLOCK_SUMS_STRIDE]
        _minima_tile(
            0,
            height,
            minima,
            _COLUMNS,
            sums,
            p[_BLOCK_SUMS_STRIDE],
            blocks,
            totals + 4 * row * _COLUMNS,
            _COLUMNS,
        )
        row += height


@njit(error_model="numpy")
def _compute_tile(p, tile, first_pass, passes, height, first_row, rows, room):
    """One tile of outputs for one group of passes."""
    blocks, block_bytes = p[_K] // QUANT_BLOCK, p[_BLOCK_BYTES]
    weights = p[_WEIGHTS] + tile * p[_TILE_BYTES]
    minima = room + _MINIMA_AT
    totals = minima + 4 * blocks * _COLUMNS
    _start_totals(p, weights, blocks, first_row, rows, minima, totals)
    for start in range(0, blocks, _CHUNK):
        count = min(_CHUNK, blocks - start)
        chunk = weights + start * block_bytes
        if p[_KIND] == _Q4_1:
            amx.expand_q4_1(chunk, count, room + _QUANTS_AT)
        else:
            amx.expand_q8_0(chunk, count, room + _QUANTS_AT)
        for index in range(passes):
            parts = p[_PARTS] + ((first_pass + index) * blocks + start) * amx.ROW_BLOCK_BYTES
            _multiply_pass(
                height, parts, chunk, block_bytes, count, room, totals + 4 * index * height * _COLUMNS
            )
    out = p[_OUT] + 4 * first_row * p[_OUT_STRIDE]
    finish(p[_EPILOGUE], totals, rows, out, p[_OUT_STRIDE], tile, p[_BIAS])


@task
def amx_linear_task(parameters, counter, thread, num_threads):
    """out (+)= x W^T for int64_at(p[_ROWS])[0] rows, split before. Draws go through the tiles of one group, then the
    next."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    if rows == 0:
        return
    room = p[_SCRATCH] + thread * p[_SCRATCH_BYTES]
    height = pass_rows(rows)
    passes = (rows + height - 1) // height
    per_group = max(1, _GROUP_BYTES // (p[_K] // QUANT_BLOCK * amx.ROW_BLOCK_BYTES))
    pieces = (passes + per_group - 1) // per_group * p[_TILES]
    draw = max(1, p[_TILES] // (num_threads * _DRAWS_PER_THREAD))
    amx.configure(room, height)
    while True:
        first = atomic_add(counter, draw)
        if first >= pieces:
            break
        for piece in range(first, min(first + draw, pieces)):
            group = piece // p[_TILES]
            first_pass = group * per_group
            count = min(per_group, passes - first_pass)
            first_row = first_pass * height
            tile = piece - group * p[_TILES]
            _compute_tile(
                p, tile, first_pass, count, height, first_row, min(count * height, rows - first_row), room
            )
    amx.release()


def scratch(num_threads: int, max_rows: int, max_inputs: int) -> NDArray[np.uint8]:
    """Working room per thread, to be shared by all linear tasks of a program."""
    return zeros((num_threads, _scratch_bytes(max_rows, max_inputs)), np.uint8)


def _scratch_bytes(rows: int, inputs: int) -> int:
    surplus = max(amx.MAX_ROWS, _MAX_ROWS)
    return _MINIMA_AT + 4 * (inputs // QUANT_BLOCK + rows + surplus) * _COLUMNS


def bind(
    weights: PackedLinear,
    split: SplitRows,
    out: NDArray[np.float32],
    num_rows: NDArray[np.int64],
    room: NDArray[np.uint8],
    *,
    epilogue: int,
    bias: NDArray[np.float32] | None = None,
) -> BoundTask:
    """A program step: out (+)= x W^T + bias for the first num_rows[0] rows, whose parts `split` holds.

    weights: of a kind in AMX_KINDS. out, epilogue and bias: as in linear/cpu.py.
    """
    if weights.kind not in AMX_KINDS:
        raise ValueError(f"matrix tiles take weights of {AMX_KINDS}, got {weights.kind}")
    check_shapes(weights, out, epilogue, bias)
    if room.shape[1] < _scratch_bytes(split.max_rows, weights.num_inputs):
        raise ValueError(
            f"the scratch room is too small for {split.max_rows} rows of {weights.num_inputs} inputs"
        )
    return bound(
        amx_linear_task, num_rows, split.parts, split.sums, split.sums.shape[1], weights.data,
        KINDS.index(weights.kind), weights.num_inputs, weights.num_tiles, weights.tile_bytes,
        tile_bytes(weights.kind, QUANT_BLOCK, _COLUMNS), out, out.shape[1], epilogue, bias, room, room.shape[1],
    )  # fmt: skip
