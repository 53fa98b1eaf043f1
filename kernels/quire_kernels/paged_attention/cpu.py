"""The paged attention task: flash attention over chunks of keys, read where they lie in the pool.

Legend: H query heads, G key/value heads, H / G queries share one; D head dimension, B block size.
A piece of work is (sequence, tile of its query tokens, key/value head); its rows are (token, query head of the group).
Chunks begin at multiples of CHUNK, and a row's own keys alone enter its sums, in ascending order: a row's result is
the same bits whether it is computed as a decode, inside a prefill, or beside any other sequence.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import atomic_add, float32_at, float64_of_bits, int32_at, int64_at
from quire_kernels.cpu.math import exp
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.team import BoundTask, bound, task
from quire_kernels.cpu.tiles import make_tile

CHUNK = 128
_KEYS = 16
_MASKED = np.float32(-1.0e30)
_ROW_STEPS = tuple(step for step in TARGET.row_steps if step <= 12)
_MAX_ROWS = _ROW_STEPS[-1]
_HEIGHT = np.array([min(s for s in _ROW_STEPS if s >= n) for n in range(_MAX_ROWS + 1)], dtype=np.int64)
_WIDTH = TARGET.tile_columns
# A tile of 16 keys is one vector wide on a wide machine: two chains of sums then hide the latency of one.
_scores_tile = make_tile(
    ("f32",), _ROW_STEPS, _KEYS // TARGET.lanes, chains=2 if TARGET.lanes == _KEYS else 1
)
_values_tile = make_tile(("f32",), _ROW_STEPS, 2, accumulate=True)

(
    _SEQS, _QKV, _Q_STRIDE, _STARTS, _LENS, _TABLE_ROWS, _TABLES, _TABLE_STRIDE, _POOL, _OUT, _OUT_STRIDE,
    _H, _G, _D, _B, _SCALE, _WINDOW, _SCRATCH, _SCRATCH_BYTES,
) = range(19)  # fmt: skip


def tile_tokens(group: int) -> int:
    """Query tokens of one piece of work, so that tokens * group rows fill the registers."""
    return max(1, _MAX_ROWS // group)


@njit(inline="always")
def _scratch_rows(group):
    return max(_MAX_ROWS, group) + _MAX_ROWS


@njit(error_model="numpy", fastmath={"nnan", "nsz", "reassoc", "contract"})
def _row_max(values, low, high):
    best = _MASKED
    for i in range(low, high):
        best = max(best, values[i])
    return best


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _softmax_chunk(scores, count, low, high, maxima, sums, row, output, size):
    """Turn a row's scores into weights; rescale what it has gathered so far when its maximum grows."""
    for i in range(low):
        scores[i] = np.float32(0.0)
    for i in range(high, count):
        scores[i] = np.float32(0.0)
    if low >= high:
        return
    before = maxima[row]
    peak = max(before, _row_max(scores, low, high))
    total = np.float32(0.0)
    for i in range(low, high):
        weight = exp(scores[i] - peak)
        scores[i] = weight
        total += weight
    if peak != before:
        shrink = exp(before - peak)
        maxima[row] = peak
        sums[row] *= shrink
        for i in range(size):
            output[i] *= shrink
    sums[row] += total


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _attend(p, sequence, first, tokens, kv_head, room):
    """One piece of work: query tokens first .. first + tokens of a sequence, for one key/value head."""
    group, size, block = p[_H] // p[_G], p[_D], p[_B]
    rows, room_rows = tokens * group, _scratch_rows(group)
    start = np.int64(int32_at(p[_STARTS])[sequence])
    length = np.int64(int32_at(p[_LENS])[sequence])
    num_queries = np.int64(int32_at(p[_STARTS])[sequence + 1]) - start
    position = length - num_queries + first
    table = int32_at(p[_TABLES] + 4 * np.int64(int32_at(p[_TABLE_ROWS])[sequence]) * p[_TABLE_STRIDE])

    queries = float32_at(room)
    scores_at = room + 4 * room_rows * size
    output_at = scores_at + 4 * room_rows * CHUNK
    maxima = float32_at(output_at + 4 * room_rows * size)
    sums = float32_at(output_at + 4 * room_rows * (size + 1))
    output = float32_at(output_at)
    scale = np.float32(float64_of_bits(p[_SCALE]))
    for t in range(tokens):
        row = float32_at(p[_QKV] + 4 * ((start + first + t) * p[_Q_STRIDE] + kv_head * group * size))
        for i in range(group * size):
            queries[t * group * size + i] = row[i] * scale
    for i in range(rows * size):
        output[i] = np.float32(0.0)
    for r in range(rows):
        maxima[r] = _MASKED
        sums[r] = np.float32(0.0)

    end = position + tokens
    begin = max(0, position - p[_WINDOW] + 1) if p[_WINDOW] > 0 else 0
    block_bytes = 4 * 2 * p[_G] * block * size
    keys_at = p[_POOL] + 4 * kv_head * block * size
    values_at = keys_at + 4 * p[_G] * block * size
    for chunk in range(begin // CHUNK * CHUNK, end, CHUNK):
        count = min(CHUNK, end - chunk)
        for r in range(0, rows, _MAX_ROWS):
            height = _HEIGHT[min(_MAX_ROWS, rows - r)]
            for key in range(0, count, _KEYS):
                at = chunk + key
                base = keys_at + np.int64(table[at // block]) * block_bytes + 4 * (at % block)
                _scores_tile(
                    0,
                    height,
                    base,
                    block,
                    room + 4 * r * size,
                    size,
                    size,
                    scores_at + 4 * (r * CHUNK + key),
                    CHUNK,
                )
        for r in range(rows):
            visible = position + r // group + 1
            low = max(0, visible - p[_WINDOW] - chunk) if p[_WINDOW] > 0 else 0
            high = min(count, visible - chunk)
            _softmax_chunk(
                float32_at(scores_at + 4 * r * CHUNK), count, low, high, maxima, sums, r,
                float32_at(output_at + 4 * r * size), size,
            )  # fmt: skip
        for r in range(0, rows, _MAX_ROWS):
            height = _HEIGHT[min(_MAX_ROWS, rows - r)]
            for key in range(0, count, _KEYS):
                at = chunk + key
                base = values_at + np.int64(table[at // block]) * block_bytes + 4 * (at % block) * size
                for column in range(0, size, _WIDTH):
                    _values_tile(
                        0, height, base + 4 * column, size, scores_at + 4 * (r * CHUNK + key), CHUNK,
                        min(_KEYS, count - key), output_at + 4 * (r * size + column), size,
                    )  # fmt: skip
    for t in range(tokens):
        target = float32_at(p[_OUT] + 4 * ((start + first + t) * p[_OUT_STRIDE] + kv_head * group * size))
        for g in range(group):
            r = t * group + g
            inverse = np.float32(1.0) / sums[r]
            for i in range(size):
                target[g * size + i] = output[r * size + i] * inverse


@njit(inline="always")
def _tiles_of(starts, sequence, per_tile):
    return (np.int64(starts[sequence + 1] - starts[sequence]) + per_tile - 1) // per_tile


@task
def paged_attention_task(parameters, counter, thread, num_threads):
    """Attention of int64_at(p[_SEQS])[0] sequences.

    Pieces are drawn in order, so each thread only moves forward. Heads are outermost: sequences that share a prefix,
    and tiles of one prefill, then find its keys and values in the cache.
    """
    p = int64_at(parameters)
    num_seqs = int64_at(p[_SEQS])[0]
    starts = int32_at(p[_STARTS])
    per_tile = max(1, _MAX_ROWS // (p[_H] // p[_G]))
    room = p[_SCRATCH] + thread * p[_SCRATCH_BYTES]
    num_tiles = 0
    for sequence in range(num_seqs):
        num_tiles += _tiles_of(starts, sequence, per_tile)
    head, sequence, passed = 0, 0, 0
    while True:
        piece = atomic_add(counter, 1)
        if piece >= num_tiles * p[_G]:
            break
        if piece // num_tiles != head:
            head, sequence, passed = piece // num_tiles, 0, 0
        tile = piece - head * num_tiles
        while tile - passed >= _tiles_of(starts, sequence, per_tile):
            passed += _tiles_of(starts, sequence, per_tile)
            sequence += 1
        first = (tile - passed) * per_tile
        queries = np.int64(starts[sequence + 1] - starts[sequence])
        _attend(p, sequence, first, min(per_tile, queries - first), head, room)


def scratch(num_threads: int, group: int, head_dim: int) -> NDArray[np.uint8]:
    """Working room per thread, to be shared by all attention tasks of a program."""
    rows = max(_MAX_ROWS, group) + _MAX_ROWS
    return zeros((num_threads, 4 * rows * (2 * head_dim + CHUNK + 2)), np.uint8)


def bind(
    qkv: NDArray[np.float32],
    out: NDArray[np.float32],
    pool: NDArray[np.float32],
    query_start_loc: NDArray[np.int32],
    seq_lens: NDArray[np.int32],
    table_rows: NDArray[np.int32],
    block_tables: NDArray[np.int32],
    num_seqs: NDArray[np.int64],
    room: NDArray[np.uint8],
    *,
    num_heads: int,
    scale: float,
    window: int = 0,
) -> BoundTask:
    """A program step: out[token, head] = softmax(scale * q k^T) v over the tokens up to and including itself.

    qkv: query heads first in each row, rotated; out: [tokens, >= H * D]; pool: one layer, [num_blocks, 2, G, B, D],
    which holds the keys and values of these tokens already. Sequence s has the query rows query_start_loc[s] ..
    query_start_loc[s + 1], the last of seq_lens[s] tokens, and the table block_tables[table_rows[s]].
    window: a token sees this many tokens, itself included; 0 is all.
    """
    _, _, kv_heads, block_size, head_dim = pool.shape
    if num_heads % kv_heads:
        raise ValueError(f"{num_heads} query heads can't share {kv_heads} key/value heads evenly")
    if block_size % _KEYS or head_dim % _WIDTH:
        raise ValueError(
            f"block_size must be a multiple of {_KEYS} and head_dim of {_WIDTH}, got {block_size} and {head_dim}"
        )
    return bound(
        paged_attention_task, num_seqs, qkv, qkv.shape[1], query_start_loc, seq_lens,
        table_rows, block_tables, block_tables.shape[1], pool, out, out.shape[1],
        num_heads, kv_heads, head_dim, block_size, float(scale), window, room, room.shape[1],
    )  # fmt: skip
