"""The filters' thresholds for few rows: of each the smallest scaled logit that min_p, top_k and top_p leave.

A search over the float32 values as ordered integers: each round cuts the interval into 16 parts, counts the tokens and
sums the probabilities in each, and goes on in the part where the target is reached. Rows are cut into chunks, one
program each; the last program of a row to finish decides. Bound by latency for few rows, by arithmetic for many.

Legend: R rows, V vocabulary, C chunks of a row.

integers   [R, 4]  phase (0: by number, 1: by mass, 2: done), keys where the interval begins and ends, shift: a part has
                   1 << shift keys
reals      [R, 8]  peak, target, bits of the lowest key that min_p leaves, count and mass beyond the interval, whether
                   the mass of all is still to be found
partial    [R, C, 34]  counts and masses of 16 parts, and of all above the floor
counters   [R]     programs that have finished; zero before and after
Grids: (C, R).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs
from quire_kernels.gpu.launch import interpreted
from quire_kernels.sample.kernel_threshold import ordered

# Rounds of four bits that a search over all float32 values takes.
_ROUNDS = 8
# Numbers that a chunk leaves.
WIDTH = 34


@triton.jit
def _value(key):
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _shift_of(low, high):
    """The smallest multiple of 4 whose 16 parts cover the interval."""
    span = (high - low).to(tl.uint32, bitcast=True).to(tl.int64)
    shift = 28
    while (shift > 0) & (span <= (tl.full([], 1, tl.int64) << shift)):
        shift -= 4
    return shift


@triton.jit
def _start_by_mass(peak, low, top_p, size):
    """The lowest key that can be the nucleus' last: all that is below has less than 1 - top_p of the mass."""
    bound = peak + tl.log((1.0 - top_p) / size) - 1.0
    return tl.maximum(low, ordered(bound))


@fast
@triton.jit
def _peak_kernel(
    logits, logits_stride, size, slots, temperatures, top_ps, min_ps, top_ks, thresholds, integers, reals, partial,
    counters, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    index = tl.program_id(1).to(tl.int64)
    wait_for_inputs(PDL)
    slot = tl.load(slots + index)
    safe = tl.maximum(slot, 0)
    temperature = tl.load(temperatures + safe)
    top_p = tl.load(top_ps + safe)
    min_p = tl.load(min_ps + safe)
    top_k = tl.load(top_ks + safe)
    by_number = (top_k > 0) & (top_k < size)
    if (slot < 0) | (temperature <= 0.0) | ((top_p >= 1.0) & (min_p <= 0.0) & ~by_number):
        if chunk == 0:
            tl.store(integers + index * 4, 2)
            tl.store(thresholds + index, float("-inf"))
    else:
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(logits + index * logits_stride + at, mask=at < size, other=float("-inf")).to(
            tl.float32
        )
        chunks = tl.num_programs(0)
        tl.store(partial + (index * chunks + chunk) * 34, tl.max(values / temperature, axis=0))
        tl.debug_barrier()
        if tl.atomic_add(counters + index, 1, sem="acq_rel") == chunks - 1:
            tl.store(counters + index, 0)
            c = tl.arange(0, CHUNKS)
            peaks = tl.load(partial + (index * chunks + c) * 34, mask=c < chunks, other=float("-inf"),
                            cache_modifier=".cg")  # fmt: skip
            peak = tl.max(peaks, axis=0)
            lowest = tl.zeros([], tl.float32) + float("-inf")
            if min_p > 0.0:
                lowest = peak + tl.log(min_p)
            floor = ordered(lowest)
            phase = 0
            low = floor
            if by_number == 0:
                phase = 1
                low = _start_by_mass(peak, floor, top_p, tl.cast(size, tl.float32))
                if top_p >= 1.0:
                    phase = 2
            high = ordered(peak) + 1
            tl.store(integers + index * 4, phase)
            tl.store(integers + index * 4 + 1, low)
            tl.store(integers + index * 4 + 2, high)
            tl.store(integers + index * 4 + 3, _shift_of(low, high))
            tl.store(reals + index * 8, peak)
            tl.store(reals + index * 8 + 1, tl.cast(top_k, tl.float32))
            tl.store(reals + index * 8 + 2, floor.to(tl.float32, bitcast=True))
            tl.store(reals + index * 8 + 3, 0.0)
            tl.store(reals + index * 8 + 4, 0.0)
            tl.store(reals + index * 8 + 5, 1.0)
            tl.store(thresholds + index, lowest)


@triton.jit
def _parts(
    row, first, size, temperature, peak, floor, low, high, shift, CHUNK: tl.constexpr, SUB: tl.constexpr
):
    """(counts, masses) of the 16 parts, and count and mass of all above the floor, of one chunk."""
    parts = tl.arange(0, 16)
    counts = tl.zeros([SUB, 16], tl.float32)
    masses = tl.zeros([SUB, 16], tl.float32)
    count = tl.zeros([SUB], tl.float32)
    mass = tl.zeros([SUB], tl.float32)
    for start in range(0, CHUNK, SUB):
        at = first + start + tl.arange(0, SUB)
        scaled = tl.load(row + at, mask=at < size, other=float("-inf")).to(tl.float32) / temperature
        keys = ordered(scaled)
        weight = tl.exp(scaled - peak)
        above = (keys >= floor) & (at < size)
        count += tl.where(above, 1.0, 0.0)
        mass += tl.where(above, weight, 0.0)
        inside = (keys >= low) & (keys < high) & (at < size)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            part = ((keys - low).to(tl.uint32, bitcast=True) >> shift).to(tl.int32)
            here = inside[:, None] & (part[:, None] == parts[None, :])
            counts += tl.where(here, 1.0, 0.0)
            masses += tl.where(here, weight[:, None], 0.0)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0), tl.sum(count, axis=0), tl.sum(mass, axis=0)


@fast
@triton.jit
def _round_kernel(
    logits, logits_stride, size, slots, temperatures, top_ps, thresholds, integers, reals, partial, counters,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SUB: tl.constexpr, LAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    index = tl.program_id(1).to(tl.int64)
    wait_for_inputs(PDL)
    phase = tl.load(integers + index * 4)
    if phase < 2:
        safe = tl.maximum(tl.load(slots + index), 0)
        low = tl.load(integers + index * 4 + 1)
        high = tl.load(integers + index * 4 + 2)
        shift = tl.load(integers + index * 4 + 3)
        peak = tl.load(reals + index * 8)
        floor = tl.load(reals + index * 8 + 2).to(tl.int32, bitcast=True)
        counts, masses, count, mass = _parts(
            logits + index * logits_stride, chunk * CHUNK, size, tl.load(temperatures + safe), peak, floor, low, high,
            shift, CHUNK, SUB,
        )  # fmt: skip
        chunks = tl.num_programs(0)
        parts = tl.arange(0, 16)
        mine = partial + (index * chunks + chunk) * 34
        tl.store(mine + parts, counts)
        tl.store(mine + 16 + parts, masses)
        tl.store(mine + 32, count)
        tl.store(mine + 33, mass)
        tl.debug_barrier()
        if tl.atomic_add(counters + index, 1, sem="acq_rel") == chunks - 1:
            tl.store(counters + index, 0)
            # In order, so that the same row always gives the same bits.
            c = tl.arange(0, CHUNKS)
            all_mine = partial + (index * chunks + c) * 34
            there = (c < chunks)[:, None]
            places = all_mine[:, None] + parts[None, :]
            counts = tl.sum(tl.load(places, mask=there, other=0.0, cache_modifier=".cg"), axis=0)
            masses = tl.sum(tl.load(places + 16, mask=there, other=0.0, cache_modifier=".cg"), axis=0)
            total = tl.sum(tl.load(all_mine + 33, mask=c < chunks, other=0.0, cache_modifier=".cg"), axis=0)
            top_p = tl.load(top_ps + safe)
            target = tl.load(reals + index * 8 + 1)
            if (phase == 1) & (tl.load(reals + index * 8 + 5) > 0.0):
                target = tl.maximum(top_p * total, 1.0e-30)
            carried_count = tl.load(reals + index * 8 + 3)
            carried_mass = tl.load(reals + index * 8 + 4)
            at_least = parts[:, None] <= parts[None, :]
            reached_count = carried_count + tl.sum(tl.where(at_least, counts[None, :], 0.0), axis=1)
            reached_mass = carried_mass + tl.sum(tl.where(at_least, masses[None, :], 0.0), axis=1)
            reached = tl.where(phase == 0, reached_count, reached_mass)
            part = tl.maximum(tl.max(tl.where(reached >= target, parts, -1), axis=0), 0)
            here = parts == part
            above = parts == part + 1
            low_count = tl.sum(tl.where(here, reached_count, 0.0), axis=0)
            low_mass = tl.sum(tl.where(here, reached_mass, 0.0), axis=0)
            if part < 15:
                carried_count = tl.sum(tl.where(above, reached_count, 0.0), axis=0)
                carried_mass = tl.sum(tl.where(above, reached_mass, 0.0), axis=0)
            low = low + (part << shift)
            # The end may lie beyond the largest integer.
            end = tl.minimum(low.to(tl.int64) + (tl.full([], 1, tl.int64) << shift), high.to(tl.int64))
            high = end.to(tl.int32)
            is_done = (shift <= LAST) | (low_count - carried_count < 1.5)
            shift = tl.maximum(shift - 4, 0)
            if is_done:
                phase += 1
                if (phase == 1) & (top_p < 1.0):
                    target = tl.maximum(top_p * low_mass, 1.0e-30)
                    high = ordered(peak) + 1
                    carried_count = 0.0
                    carried_mass = 0.0
                    low = _start_by_mass(peak, low, top_p, tl.cast(size, tl.float32))
                    shift = _shift_of(low, high)
                else:
                    phase = 2
                    tl.store(thresholds + index, _value(low))
            tl.store(integers + index * 4, phase)
            tl.store(integers + index * 4 + 1, low)
            tl.store(integers + index * 4 + 2, high)
            tl.store(integers + index * 4 + 3, shift)
            tl.store(reals + index * 8 + 1, target)
            tl.store(reals + index * 8 + 3, carried_count)
            tl.store(reals + index * 8 + 4, carried_mass)
            tl.store(reals + index * 8 + 5, 0.0)


def launch(
    logits: torch.Tensor,
    slots: torch.Tensor,
    table: Any,
    thresholds: torch.Tensor,
    scratch: tuple[torch.Tensor, ...],
    *,
    chunk: int,
    options: dict[str, object],
) -> None:
    """Launch the peak and every round; rounds that no row needs end at once. scratch: integers, reals, partial,
    counters."""
    size = logits.shape[1]
    chunks = triton.cdiv(size, chunk)
    grid = (chunks, len(slots))
    integers, reals, partial, counters = scratch
    padded = triton.next_power_of_2(chunks)
    _peak_kernel[grid](
        logits, logits.stride(0), size, slots, table.temperature, table.top_p, table.min_p, table.top_k, thresholds,
        integers, reals, partial, counters, CHUNK=chunk, CHUNKS=padded, num_warps=4, **options,
    )  # fmt: skip
    # Triton's interpreter costs by the operation, not by its size.
    sub = chunk if interpreted() else 256
    # Different 16-bit values are at least 1 << 11 keys apart, whatever they are divided by.
    last = 11 if logits.element_size() == 2 else 0
    for _ in range(2 * (_ROUNDS if last == 0 else 6)):
        _round_kernel[grid](
            logits, logits.stride(0), size, slots, table.temperature, table.top_p, thresholds, integers, reals, partial,
            counters, CHUNK=chunk, CHUNKS=padded, SUB=sub, LAST=last, num_warps=4, **options,
        )  # fmt: skip
