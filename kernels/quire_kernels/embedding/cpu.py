"""The embedding task: one column of a weight tile per token, converted exactly as the linear kernels convert it."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import (
    float32_at,
    float32_of_bits,
    float32_of_half,
    int8_at,
    int32_at,
    int64_at,
    uint8_at,
    uint16_at,
)
from quire_kernels.cpu.layout import KINDS
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import BoundTask, bound, task
from quire_kernels.linear.packing import PackedLinear

_COLUMNS = TARGET.tile_columns
_F32, _F16, _BF16, _Q8_0, _Q4_1 = (KINDS.index(kind) for kind in ("f32", "f16", "bf16", "q8_0", "q4_1"))
_ROWS, _TOKENS, _WEIGHTS, _KIND, _K, _TILE_BYTES, _OUT, _OUT_STRIDE = range(8)


@njit(error_model="numpy")
def _copy_plain(kind, tile, column, k, out):
    if kind == _F32:
        values = float32_at(tile)
        for i in range(k):
            out[i] = values[i * _COLUMNS + column]
        return
    bits = uint16_at(tile)
    for i in range(k):
        if kind == _F16:
            out[i] = float32_of_half(bits[i * _COLUMNS + column])
        else:
            out[i] = float32_of_bits(np.int32(np.uint32(bits[i * _COLUMNS + column]) << np.uint32(16)))


@njit(error_model="numpy")
def _copy_quantised(kind, tile, column, k, out):
    for block in range(k // 32):
        if kind == _Q8_0:
            base = tile + block * (2 + 32) * _COLUMNS
            scale = float32_of_half(uint16_at(base)[column])
            numbers = int8_at(base + 2 * _COLUMNS)
            for i in range(32):
                out[block * 32 + i] = scale * np.float32(numbers[i * _COLUMNS + column])
        else:
            base = tile + block * (4 + 16) * _COLUMNS
            scale = float32_of_half(uint16_at(base)[column])
            minimum = float32_of_half(uint16_at(base)[_COLUMNS + column])
            nibbles = uint8_at(base + 4 * _COLUMNS)
            for i in range(16):
                both = np.int32(nibbles[i * _COLUMNS + column])
                out[block * 32 + 2 * i] = scale * np.float32(both & 15) + minimum
                out[block * 32 + 2 * i + 1] = scale * np.float32(both >> 4) + minimum


@task
def embedding_task(parameters, counter, thread, num_threads):
    """out[i] = table[token_ids[i]] for int64_at(p[_ROWS])[0] tokens."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    tokens = int32_at(p[_TOKENS])
    for index in range(thread * rows // num_threads, (thread + 1) * rows // num_threads):
        token = np.int64(tokens[index])
        tile = p[_WEIGHTS] + token // _COLUMNS * p[_TILE_BYTES]
        out = float32_at(p[_OUT] + 4 * index * p[_OUT_STRIDE])
        if p[_KIND] == _Q8_0 or p[_KIND] == _Q4_1:
            _copy_quantised(p[_KIND], tile, token % _COLUMNS, p[_K], out)
        else:
            _copy_plain(p[_KIND], tile, token % _COLUMNS, p[_K], out)


def bind(
    table: PackedLinear, token_ids: NDArray[np.int32], out: NDArray[np.float32], num_rows: NDArray[np.int64]
) -> BoundTask:
    """A program step: the rows of the first num_rows[0] token ids, each below table.num_outputs, into out."""
    if table.gated or out.shape[1] < table.num_inputs:
        raise ValueError(f"out [.., {out.shape[1]}] is narrower than the table, {table.num_inputs}")
    return bound(
        embedding_task, num_rows, token_ids, table.data, KINDS.index(table.kind), table.num_inputs,
        table.tile_bytes, out, out.shape[1],
    )  # fmt: skip
