"""The filters' thresholds for many rows: of each the smallest scaled logit that min_p, top_k and top_p leave.

One program per row passes over it again and again, each time with three keys between those known to be too low and too
high. Few rows leave the device idle this way: theirs are kernel_threshold_chunks.py's. Bound by arithmetic.

Legend: R rows, V vocabulary. logits [R, V], thresholds [R]. Grid: (R).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs


@triton.jit
def ordered(values):
    """int32 keys that compare as the float32 values do; its own inverse on bits."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _masses(row, size, temperature, peak, key1, key2, key3, BLOCK: tl.constexpr):
    """Of the tokens whose keys are at least each of three keys: their number and their probability mass."""
    count1 = tl.zeros([BLOCK], tl.int32)
    count2 = tl.zeros([BLOCK], tl.int32)
    count3 = tl.zeros([BLOCK], tl.int32)
    mass1 = tl.zeros([BLOCK], tl.float32)
    mass2 = tl.zeros([BLOCK], tl.float32)
    mass3 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        scaled = tl.load(row + at, mask=at < size, other=float("-inf")).to(tl.float32) / temperature
        keys = ordered(scaled)
        weight = tl.exp(scaled - peak)
        count1 += (keys >= key1).to(tl.int32)
        count2 += (keys >= key2).to(tl.int32)
        count3 += (keys >= key3).to(tl.int32)
        mass1 += tl.where(keys >= key1, weight, 0.0)
        mass2 += tl.where(keys >= key2, weight, 0.0)
        mass3 += tl.where(keys >= key3, weight, 0.0)
    return (tl.sum(count1).to(tl.float32), tl.sum(count2).to(tl.float32), tl.sum(count3).to(tl.float32),
            tl.sum(mass1), tl.sum(mass2), tl.sum(mass3))  # fmt: skip


@triton.jit
def _search(row, size, temperature, peak, low, low_count, target, BY_MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key whose tokens reach the target, or one that leaves the same tokens. low reaches it."""
    low = low.to(tl.int64)
    high = ordered(peak).to(tl.int64) + 1
    high_count = low_count * 0.0
    while (high - low > 1) & (low_count - high_count > 1.5):
        step = (high - low + 3) // 4
        key1 = low + step
        key2 = tl.minimum(key1 + step, high)
        key3 = tl.minimum(key2 + step, high)
        count1, count2, count3, mass1, mass2, mass3 = _masses(
            row, size, temperature, peak, key1.to(tl.int32), key2.to(tl.int32), key3.to(tl.int32), BLOCK
        )
        if BY_MASS:
            reached1, reached2, reached3 = mass1, mass2, mass3
        else:
            reached1, reached2, reached3 = count1, count2, count3
        if reached3 >= target:
            low, low_count = key3, count3
        elif reached2 >= target:
            low, low_count = key2, count2
            high, high_count = key3, count3
        elif reached1 >= target:
            low, low_count = key1, count1
            high, high_count = key2, count2
        else:
            high, high_count = key1, count1
    return low.to(tl.int32)


@fast
@triton.jit
def _threshold_kernel(
    logits, logits_stride, size, slots, temperatures, top_ps, min_ps, top_ks, thresholds,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0)
    wait_for_inputs(PDL)
    slot = tl.load(slots + index)
    safe = tl.maximum(slot, 0)
    temperature = tl.load(temperatures + safe)
    top_p = tl.load(top_ps + safe)
    min_p = tl.load(min_ps + safe)
    top_k = tl.load(top_ks + safe)
    limits_number = (top_k > 0) & (top_k < size)
    threshold = float("-inf")
    if (slot >= 0) & (temperature > 0.0) & (limits_number | (top_p < 1.0) | (min_p > 0.0)):
        row = logits + index.to(tl.int64) * logits_stride
        peaks = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            scaled = tl.load(row + at, mask=at < size, other=float("-inf")).to(tl.float32) / temperature
            peaks = tl.maximum(peaks, scaled)
        peak = tl.max(peaks)
        if min_p > 0.0:
            threshold = peak + tl.log(min_p)
        key = ordered(tl.zeros([], tl.float32) + threshold)
        if limits_number:
            lowest = ordered(tl.full([], float("-inf"), tl.float32))
            size_count, k_count = tl.cast(size, tl.float32), tl.cast(top_k, tl.float32)
            found = _search(row, size, temperature, peak, lowest, size_count, k_count, False, BLOCK)
            key = tl.maximum(key, found)
        if top_p < 1.0:
            count, _, _, total, _, _ = _masses(row, size, temperature, peak, key, key, key, BLOCK)
            key = _search(
                row, size, temperature, peak, key, count, tl.maximum(top_p * total, 1.0e-30), True, BLOCK
            )
        threshold = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(thresholds + index, threshold)


def launch(
    logits: torch.Tensor,
    slots: torch.Tensor,
    table: Any,
    thresholds: torch.Tensor,
    options: dict[str, object],
) -> None:
    """Launch once."""
    block = min(8192, triton.next_power_of_2(logits.shape[1]))
    _threshold_kernel[(len(slots),)](
        logits, logits.stride(0), logits.shape[1], slots, table.temperature, table.top_p, table.min_p, table.top_k,
        thresholds, BLOCK=block, num_warps=16 if block == 8192 else 4, **options,
    )  # fmt: skip
