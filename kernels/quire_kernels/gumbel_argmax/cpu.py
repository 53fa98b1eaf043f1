"""The Gumbel-argmax task: argmax(logit - log(e)) with e exponential, which draws from softmax(logits).

Rows are drawn by threads. No fast-math: u near 0 decides the winner, and its logarithm must be exact there.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import atomic_add, float32_at, int32_at, int64_at
from quire_kernels.cpu.math import log
from quire_kernels.cpu.team import BoundTask, bound, task
from quire_kernels.gumbel_argmax.random import KEY_STEPS, MULTIPLIERS, ROUNDS

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0, _M1 = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_K0, _K1 = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])
_TINY = np.float32(2.0**-32)
_ROWS, _LOGITS, _STRIDE, _SIZE, _SEEDS, _SEQUENCES, _POSITIONS, _OUT = range(8)


@njit(inline="always", error_model="numpy")
def _minus_log_exponential(word):
    """-log(e) for an exponential number e = -log(1 - u) made from 32 random bits."""
    u = (np.float32(word) + np.float32(0.5)) * _TINY
    rest = np.float32(1.0) - u
    lost = np.float32(1.0) - rest
    # log(1 - u), corrected for what 1 - u lost to rounding; for tiny u it is -u itself.
    e = -log(max(rest, np.float32(1.0e-30))) * (u / lost) if lost > np.float32(0.0) else u
    return -log(e)


@njit(error_model="numpy")
def _add_noise(logits, size, seed, sequence, position):
    """logits[i] -= log(e_i), four tokens to a counter; the last group may be partial."""
    for group in range((size + 3) // 4):
        c0, c1, c2, c3 = np.uint64(group), position, sequence, np.uint64(0)
        k0, k1 = seed & _WORD, seed >> _HALF
        for _ in range(ROUNDS):
            first, second = c0 * _M0, c2 * _M1
            c0, c1, c2, c3 = (
                (second >> _HALF) ^ c1 ^ k0, second & _WORD, (first >> _HALF) ^ c3 ^ k1, first & _WORD
            )  # fmt: skip
            k0, k1 = (k0 + _K0) & _WORD, (k1 + _K1) & _WORD
        at = 4 * group
        logits[at] += _minus_log_exponential(c0)
        if at + 1 < size:
            logits[at + 1] += _minus_log_exponential(c1)
        if at + 2 < size:
            logits[at + 2] += _minus_log_exponential(c2)
        if at + 3 < size:
            logits[at + 3] += _minus_log_exponential(c3)


@task
def gumbel_argmax_task(parameters, counter, thread, num_threads):
    """Draw one token for each of int64_at(p[_ROWS])[0] rows; the logits are overwritten."""
    p = int64_at(parameters)
    rows, size = int64_at(p[_ROWS])[0], p[_SIZE]
    while True:
        row = atomic_add(counter, 1)
        if row >= rows:
            break
        logits = float32_at(p[_LOGITS] + 4 * row * p[_STRIDE])
        seed = np.uint64(int64_at(p[_SEEDS])[row])
        sequence = np.uint64(int64_at(p[_SEQUENCES])[row])
        position = np.uint64(int64_at(p[_POSITIONS])[row])
        _add_noise(logits, size, seed, sequence, position)
        best, index = logits[0], 0
        for i in range(1, size):
            if logits[i] > best:
                best, index = logits[i], i
        int32_at(p[_OUT])[row] = np.int32(index)


def bind(
    logits: NDArray[np.float32],
    size: int,
    seeds: NDArray[np.int64],
    sequence_indices: NDArray[np.int64],
    positions: NDArray[np.int64],
    out: NDArray[np.int32],
    num_rows: NDArray[np.int64],
) -> BoundTask:
    """A program step: for the first num_rows[0] rows a token id drawn from softmax(logits[row, :size]).

    logits: scaled by the temperature, -inf for what can't be drawn; overwritten. seeds: the bits of the 64-bit seed.
    """
    if not 0 < size <= logits.shape[1]:
        raise ValueError(f"size must be in 1..{logits.shape[1]}, got {size}")
    return bound(
        gumbel_argmax_task, num_rows, logits, logits.shape[1], size, seeds, sequence_indices,
        positions, out,
    )  # fmt: skip
