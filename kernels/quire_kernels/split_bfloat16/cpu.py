"""The split task: float32 activations into bfloat16 parts, in the order in which matrix tiles read them.

Legend: x [rows, K]; a pass is up to 16 rows that one product step takes; a block is 32 of K. Rows are shared out evenly
over as few passes as there can be, so that one shape of tiles serves them all.
Parts lie as [pass][block][part][16 rows][32] bfloat16, block sums as [row][block] float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import (
    bits_of_float32,
    float32_at,
    float32_of_bits,
    int64_at,
    uint16_at,
)
from quire_kernels.cpu.layout import QUANT_BLOCK
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.team import BoundTask, bound, task

MAX_ROWS = 16
PARTS = 3
_BLOCK_WORDS = PARTS * MAX_ROWS * QUANT_BLOCK
_UPPER = np.int32(-65536)
_SIXTEEN = np.int32(16)
_ROWS, _X, _X_STRIDE, _K, _PARTS, _SUMS, _SUMS_STRIDE = range(7)


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Room for the parts and block sums of up to `max_rows` rows; which inputs they have, the tasks know."""

    max_rows: int
    parts: NDArray[np.uint16]
    sums: NDArray[np.float32]


def room(max_rows: int, max_inputs: int) -> SplitRows:
    """Room to be shared by all products of a program. Matrix tiles of the last pass may read beyond its rows."""
    blocks = max_inputs // QUANT_BLOCK
    passes = max_rows // MAX_ROWS + 1
    parts = zeros((passes, blocks * _BLOCK_WORDS), np.uint16)
    return SplitRows(max_rows, parts, zeros((max_rows + MAX_ROWS, blocks), np.float32))


@njit(inline="always")
def pass_rows(rows):
    """Rows of each pass but the last, which may have fewer."""
    passes = (rows + MAX_ROWS - 1) // MAX_ROWS
    return (rows + passes - 1) // passes


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _split_block(x, parts):
    """Cut 32 values after 8 and 16 bits of their fractions, which leaves at most 8; returns their sum."""
    first = uint16_at(parts)
    second = uint16_at(parts + 2 * MAX_ROWS * QUANT_BLOCK)
    third = uint16_at(parts + 4 * MAX_ROWS * QUANT_BLOCK)
    total = np.float32(0.0)
    for i in range(QUANT_BLOCK):
        value = x[i]
        total += value
        bits = bits_of_float32(value)
        rest = value - float32_of_bits(bits & _UPPER)
        rest_bits = bits_of_float32(rest)
        last_bits = bits_of_float32(rest - float32_of_bits(rest_bits & _UPPER))
        first[i] = np.uint16(bits >> _SIXTEEN)
        second[i] = np.uint16(rest_bits >> _SIXTEEN)
        third[i] = np.uint16(last_bits >> _SIXTEEN)
    return total


@task
def split_task(parameters, counter, thread, num_threads):
    """Split int64_at(p[_ROWS])[0] rows."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    if rows == 0:
        return
    blocks = p[_K] // QUANT_BLOCK
    height = pass_rows(rows)
    for row in range(thread * rows // num_threads, (thread + 1) * rows // num_threads):
        x = p[_X] + 4 * row * p[_X_STRIDE]
        sums = float32_at(p[_SUMS] + 4 * row * p[_SUMS_STRIDE])
        parts = p[_PARTS] + 2 * (row // height * blocks * _BLOCK_WORDS + row % height * QUANT_BLOCK)
        for block in range(blocks):
            sums[block] = _split_block(
                float32_at(x + 4 * block * QUANT_BLOCK), parts + 2 * block * _BLOCK_WORDS
            )


def bind(x: NDArray[np.float32], num_inputs: int, num_rows: NDArray[np.int64], out: SplitRows) -> BoundTask:
    """A program step: the first num_inputs values (a multiple of 32) of the first num_rows[0] rows of x into out."""
    blocks = num_inputs // QUANT_BLOCK
    if num_inputs % QUANT_BLOCK or x.shape[1] < num_inputs:
        raise ValueError(
            f"inputs must be a multiple of {QUANT_BLOCK} within x [.., {x.shape[1]}], got {num_inputs}"
        )
    if out.parts.shape[1] < blocks * _BLOCK_WORDS:
        raise ValueError(f"the room for parts is too small for {num_inputs} inputs")
    return bound(split_task, num_rows, x, x.shape[1], num_inputs, out.parts, out.sums, out.sums.shape[1])


def joined(out: SplitRows, rows: int, num_inputs: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """What `split_task` left for so many rows: parts [3, rows, num_inputs] as float32, block sums [rows, blocks]."""
    blocks = num_inputs // QUANT_BLOCK
    if rows == 0:
        return np.zeros((PARTS, 0, num_inputs), np.float32), np.zeros((0, blocks), np.float32)
    passes = -(-rows // MAX_ROWS)
    height = -(-rows // passes)
    words = out.parts.reshape(-1)[: passes * blocks * _BLOCK_WORDS]
    tiles = words.reshape(passes, blocks, PARTS, MAX_ROWS, QUANT_BLOCK)[:, :, :, :height]
    values = (tiles.astype(np.uint32) << 16).view(np.float32)
    parts = values.transpose(2, 0, 3, 1, 4).reshape(PARTS, passes * height, num_inputs)
    return parts[:, :rows].copy(), out.sums[:rows, :blocks].copy()
