"""The rope-and-write task: queries are rotated in place, keys rotated into the pool, values copied into it.

Legend: H query heads, G key/value heads, D head dimension, B block size.
qkv row: H * D queries, G * D keys, G * D values. Pool of a layer: [num_blocks][keys, values][G][B * D] float32;
keys of a block and head lie as [D][B] (so that 16 keys are one vector), values as [B][D].
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import float32_at, float64_of_bits, int32_at, int64_at
from quire_kernels.cpu.team import BoundTask, bound, task

(
    _ROWS, _QKV, _STRIDE, _POSITIONS, _SLOTS, _COS, _SIN, _POOL, _H, _G, _D, _B, _Q_NORM, _K_NORM, _EPS,
) = range(15)  # fmt: skip


@njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _rotate(head, size, cos, sin, norm, eps):
    """Norm (if `norm` is an address) and rotate one head in place; pairs are (i, i + size / 2)."""
    if norm != 0:
        weight = float32_at(norm)
        total = np.float32(0.0)
        for i in range(size):
            total += head[i] * head[i]
        scale = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(size) + eps))
        for i in range(size):
            head[i] = head[i] * scale * weight[i]
    half = size // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] - b * sin[i]
        head[half + i] = b * cos[i] + a * sin[i]


@task
def rope_kv_write_task(parameters, counter, thread, num_threads):
    """Treat int64_at(p[_ROWS])[0] tokens."""
    p = int64_at(parameters)
    rows = int64_at(p[_ROWS])[0]
    heads, kv_heads, size, block = p[_H], p[_G], p[_D], p[_B]
    eps = np.float32(float64_of_bits(p[_EPS]))
    head_values = block * size
    for index in range(thread * rows // num_threads, (thread + 1) * rows // num_threads):
        position = np.int64(int32_at(p[_POSITIONS])[index])
        slot = int64_at(p[_SLOTS])[index]
        cos = float32_at(p[_COS] + 4 * position * (size // 2))
        sin = float32_at(p[_SIN] + 4 * position * (size // 2))
        row = p[_QKV] + 4 * index * p[_STRIDE]
        for head in range(heads):
            _rotate(float32_at(row + 4 * head * size), size, cos, sin, p[_Q_NORM], eps)
        offset = slot % block
        target = p[_POOL] + 4 * (slot // block) * 2 * kv_heads * head_values
        for head in range(kv_heads):
            key = float32_at(row + 4 * (heads + head) * size)
            _rotate(key, size, cos, sin, p[_K_NORM], eps)
            keys = float32_at(target + 4 * head * head_values)
            for i in range(size):
                keys[i * block + offset] = key[i]
            value = float32_at(row + 4 * (heads + kv_heads + head) * size)
            values = float32_at(target + 4 * ((kv_heads + head) * head_values + offset * size))
            for i in range(size):
                values[i] = value[i]


def bind(
    qkv: NDArray[np.float32],
    positions: NDArray[np.int32],
    slot_mapping: NDArray[np.int64],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    pool: NDArray[np.float32],
    num_rows: NDArray[np.int64],
    *,
    num_heads: int,
    q_norm: NDArray[np.float32] | None = None,
    k_norm: NDArray[np.float32] | None = None,
    eps: float = 0.0,
) -> BoundTask:
    """A program step over the first num_rows[0] tokens.

    positions: rows of cos and sin [max_position, D / 2]; slot_mapping: block_id * B + offset of each token.
    pool: one layer, [num_blocks, 2, G, B, D] (see the module for the order within a block).
    """
    _, _, kv_heads, block_size, head_dim = pool.shape
    if qkv.shape[1] < (num_heads + 2 * kv_heads) * head_dim:
        raise ValueError(
            f"qkv rows of {qkv.shape[1]} hold no {num_heads} + 2 * {kv_heads} heads of {head_dim}"
        )
    if cos.shape[1] * 2 != head_dim or head_dim % 2:
        raise ValueError(f"cos and sin have {cos.shape[1]} columns, a head of {head_dim} needs half of that")
    return bound(
        rope_kv_write_task, num_rows, qkv, qkv.shape[1], positions, slot_mapping, cos,
        sin, pool, num_heads, kv_heads, head_dim, block_size, q_norm, k_norm,
        float(eps),
    )  # fmt: skip
