"""sample: the draw; the filters' thresholds are kernel_threshold*.py's. Bound by the logits' bytes, waits for no host.

Legend: R rows, V vocabulary, M slots. A row's slot says where its parameters and its tokens are; -1: nothing is drawn.

logits        [R, V]  raw, row stride logits_stride; scaled by the temperature where it is above 0
thresholds    [R]     smallest scaled logit that can be drawn
best, where   [R, CHUNKS] of each chunk the largest value and its token id
counters      [R]     chunks that have finished; zero before and after
tokens        [M, tokens of a slot], num_tokens [M], num_computed [M]: a row draws if all its tokens are computed
Grid: (CHUNKS, R).

Random numbers are those of gumbel_argmax.random: key (seed), counter (token id / 4, position, sequence index, 0).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs


@triton.jit
def gumbel_noise(groups, position, sequence_index, seed):
    """-log(e) for exponential numbers e of the token ids 4 groups .. 4 groups + 3, float32 [4 * groups]."""
    zero = groups * 0
    c0, c1, c2, c3 = tl.philox_impl(
        groups.to(tl.uint32), (zero + position).to(tl.uint32), (zero + sequence_index).to(tl.uint32),
        zero.to(tl.uint32), (zero + (seed & 0xFFFFFFFF)).to(tl.uint32),
        (zero + ((seed >> 32) & 0xFFFFFFFF)).to(tl.uint32), 10,
    )  # fmt: skip
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    u = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rest = 1.0 - u
    lost = 1.0 - rest
    # log(1 - u), corrected for what 1 - u lost to rounding; for tiny u it is -u itself.
    corrected = -tl.log(tl.maximum(rest, 1.0e-30)) * (u / tl.where(lost > 0.0, lost, 1.0))
    return -tl.log(tl.where(lost > 0.0, corrected, u))


@fast
@triton.jit
def _draw_kernel(
    logits, logits_stride, size, slots, temperatures, seeds, sequence_indices, thresholds, tokens, token_stride,
    num_tokens, num_computed, out, best, where, counters,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, FILTERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    index = tl.program_id(1)
    wait_for_inputs(PDL)
    slot = tl.load(slots + index)
    safe = tl.maximum(slot, 0)
    known = tl.load(num_tokens + safe)
    if (slot < 0) | (tl.load(num_computed + safe) != known):
        if chunk == 0:
            tl.store(out + index, -1)
    else:
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        row = logits + index.to(tl.int64) * logits_stride
        values = tl.load(row + at, mask=at < size, other=float("-inf")).to(tl.float32)
        temperature = tl.load(temperatures + safe)
        if temperature > 0.0:
            values = values / temperature
            if FILTERED:
                values = tl.where(values >= tl.load(thresholds + index), values, float("-inf"))
            groups = (chunk * (CHUNK // 4) + tl.arange(0, CHUNK // 4)).to(tl.int64)
            values += gumbel_noise(groups, known, tl.load(sequence_indices + safe), tl.load(seeds + safe))
        largest = tl.max(values, axis=0)
        token = chunk * CHUNK + tl.argmax(values, axis=0, tie_break_left=True)
        chunks = tl.num_programs(0)
        tl.store(best + index * CHUNKS + chunk, largest)
        tl.store(where + index * CHUNKS + chunk, token)
        tl.debug_barrier()
        if tl.atomic_add(counters + index, 1, sem="acq_rel") == chunks - 1:
            tl.store(counters + index, 0)
            all_chunks = tl.arange(0, CHUNKS)
            there = all_chunks < chunks
            bests = tl.load(
                best + index * CHUNKS + all_chunks, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            winner = tl.argmax(bests, axis=0, tie_break_left=True)
            token = tl.load(where + index * CHUNKS + winner, cache_modifier=".cg")
            tl.store(out + index, token)
            tl.store(tokens + safe.to(tl.int64) * token_stride + known, token)
            # Last: the other programs of this row have read it already, they count as finished.
            tl.store(num_tokens + safe, known + 1)


def launch_draw(
    logits: torch.Tensor,
    slots: torch.Tensor,
    table: Any,
    tables: Any,
    out: torch.Tensor,
    scratch: tuple[torch.Tensor, ...],
    *,
    chunk: int,
    filtered: bool,
    options: dict[str, object],
) -> None:
    """Launch once. scratch: thresholds, best, where, counters."""
    size = logits.shape[1]
    chunks = triton.cdiv(size, chunk)
    thresholds, best, where, counters = scratch
    _draw_kernel[(chunks, len(slots))](
        logits, logits.stride(0), size, slots, table.temperature, table.seed, table.sequence_index, thresholds,
        tables.token_ids, tables.token_ids.stride(0), tables.num_tokens, tables.num_computed, out, best, where,
        counters, CHUNK=chunk, CHUNKS=triton.next_power_of_2(chunks), FILTERED=filtered,
        num_warps=4 if chunk <= 2048 else 8, **options,
    )  # fmt: skip
