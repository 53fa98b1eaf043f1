"""adjust_logits: bias, penalties and masks of each row in one pass over its logits, then what is forbidden now.

Bound by the logits' bytes. No wait for the host: tokens that were sampled since the last time are counted first, by the
program that owns their part of the vocabulary.

Legend: R rows, V vocabulary, M slots, C chunks of the vocabulary, W = V / 32 words.

logits      [R, V] raw; out [R, V] float32. A row's slot says what is to be done; -1: nothing, out is left alone
flags       [M]    which of BIAS 1, PENALTIES 2, ALLOWED 4, FORBIDDEN 8 a slot has (by_slot.py)
penalties   [M, 3] repetition, frequency, presence; num_prompt [M]: leading tokens that count for repetition alone
counts      [M, V] times in the output, plus 1 << 30 for what is in the prompt; counted [M, C]: tokens taken in so far
bias_ids, bias_values [M, bias_stride], bias_lengths [M]
masks       [masks, W] int32 words, mask_rows [R]: a row's mask or -1; allowed [M, W]: the same by slot
ending      [M, ending_stride] ids that can't come while num_tokens < min_until [M]; ending_lengths [M]
bad_tokens  [M, bad_stride] sequences one behind the other, starts [M, starts_stride] of each and of the end,
            bad_lengths [M] sequences, bad_longest [M]: tokens of the longest but one
hits, saved [R, room] ids that are forbidden now, and their logits until it is known that something is left
Grids: _adjust_kernel (C, R), _forbid_kernel (R).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast


@triton.jit
def _permitted(values, words, at, there):
    """values where the word's bit is set, else -inf."""
    bits = tl.load(words + at // 32, mask=there, other=0)
    return tl.where(((bits >> (at % 32)) & 1) != 0, values, float("-inf"))


@triton.jit
def _count(counts, tokens, start, end, num_prompt, first, last, BLOCK: tl.constexpr):
    """Take tokens start .. end of a sequence into the counts of ids first .. last."""
    for at in range(start, end, BLOCK):
        k = at + tl.arange(0, BLOCK)
        ids = tl.load(tokens + k, mask=k < end, other=-1)
        mine = (ids >= first) & (ids < last)
        tl.atomic_add(counts + ids, 1, mask=mine & (k >= num_prompt))
        tl.atomic_or(counts + ids, 1 << 30, mask=mine & (k < num_prompt))


# Lists grow while serving, and slots come from two places: neither must make new kernels.
@fast
@triton.jit(do_not_specialize=["bias_stride"], do_not_specialize_on_alignment=["slots"])
def _adjust_kernel(
    logits, logits_stride, size, slots, out, out_stride, flags, penalties, num_prompt, tokens, token_stride,
    num_tokens, counts, counted, bias_ids, bias_values, bias_stride, bias_lengths, masks, mask_rows, allowed, words,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    index = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + index).to(tl.int64)
    if slot >= 0:
        flag = tl.load(flags + slot)
        first = chunk * CHUNK
        at = first + tl.arange(0, CHUNK)
        there = at < size
        target = out + index * out_stride
        values = tl.load(logits + index * logits_stride + at, mask=there, other=float("-inf")).to(tl.float32)
        if flag & 1:
            tl.store(target + at, values, mask=there)
            tl.debug_barrier()
            length = tl.load(bias_lengths + slot)
            for start in range(0, length, BLOCK):
                k = start + tl.arange(0, BLOCK)
                ids = tl.load(bias_ids + slot * bias_stride + k, mask=k < length, other=-1)
                mine = (ids >= first) & (ids < first + CHUNK)
                held = tl.load(target + ids, mask=mine, other=0.0)
                bias = tl.load(bias_values + slot * bias_stride + k, mask=mine, other=0.0)
                tl.store(target + ids, held + bias, mask=mine)
            tl.debug_barrier()
            values = tl.load(target + at, mask=there, other=float("-inf"))
        if flag & 2:
            known = tl.load(num_tokens + slot)
            place = counted + slot * tl.num_programs(0) + chunk
            mine_counts = counts + slot * size
            _count(
                mine_counts, tokens + slot * token_stride, tl.load(place), known, tl.load(num_prompt + slot), first,
                first + CHUNK, BLOCK,
            )  # fmt: skip
            tl.debug_barrier()
            tl.store(place, known)
            count = tl.load(mine_counts + at, mask=there, other=0, cache_modifier=".cg")
            times = count & ((1 << 30) - 1)
            repetition = tl.load(penalties + slot * 3)
            repeated = tl.where(values > 0.0, values / repetition, values * repetition)
            values = tl.where(count != 0, repeated, values)
            values -= tl.load(penalties + slot * 3 + 1) * times.to(tl.float32)
            values -= tl.where(times > 0, tl.load(penalties + slot * 3 + 2), 0.0)
        mask_row = tl.load(mask_rows + index).to(tl.int64)
        if mask_row >= 0:
            values = _permitted(values, masks + mask_row * words, at, there)
        if flag & 4:
            values = _permitted(values, allowed + slot * words, at, there)
        tl.store(target + at, values, mask=there)


@triton.jit
def _find_bad(
    row,
    hits,
    saved,
    at_hit,
    tokens,
    known,
    num_outputs,
    bad_tokens,
    starts,
    length,
    longest,
    BLOCK: tl.constexpr,
):
    """Which sequences the output's end would complete: their last ids and these ids' logits, or -1."""
    for start in range(0, length, BLOCK):
        j = start + tl.arange(0, BLOCK)
        there = j < length
        begin = tl.load(starts + j, mask=there, other=0)
        end = tl.load(starts + j + 1, mask=there, other=1)
        before = end - 1 - begin
        matches = there & (before <= num_outputs)
        for p in range(longest):
            inside = matches & (p < before)
            wanted = tl.load(bad_tokens + begin + p, mask=inside, other=0)
            had = tl.load(tokens + known - before + p, mask=inside, other=0)
            matches = matches & (wanted == had)
        last = tl.load(bad_tokens + end - 1, mask=matches, other=-1)
        tl.store(hits + at_hit + j, last, mask=there)
        tl.store(saved + at_hit + j, tl.load(row + last, mask=matches, other=0.0), mask=there)


@triton.jit
def _put(row, hits, saved, length, restore, BLOCK: tl.constexpr):
    """-inf at each hit, or what was there before."""
    for start in range(0, length, BLOCK):
        k = start + tl.arange(0, BLOCK)
        ids = tl.load(hits + k, mask=k < length, other=-1)
        values = tl.load(saved + k, mask=k < length, other=0.0)
        tl.store(row + ids, tl.where(restore, values, float("-inf")), mask=ids >= 0)


@fast
@triton.jit(
    do_not_specialize=["ending_stride", "bad_stride", "starts_stride", "room"],
    do_not_specialize_on_alignment=["slots"],
)
def _forbid_kernel(
    out, out_stride, size, slots, flags, num_prompt, tokens, token_stride, num_tokens, ending, ending_stride,
    ending_lengths, min_until, bad_tokens, bad_stride, starts, starts_stride, bad_lengths, bad_longest, hits, saved,
    room, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + index).to(tl.int64)
    flag = tl.load(flags + tl.maximum(slot, 0))
    if (slot >= 0) & ((flag & 8) != 0):
        row = out + index * out_stride
        mine, kept = hits + index * room, saved + index * room
        known = tl.load(num_tokens + slot)
        num_ending = tl.where(known < tl.load(min_until + slot), tl.load(ending_lengths + slot), 0)
        for start in range(0, num_ending, BLOCK):
            k = start + tl.arange(0, BLOCK)
            ids = tl.load(ending + slot * ending_stride + k, mask=k < num_ending, other=-1)
            tl.store(mine + k, ids, mask=k < num_ending)
            tl.store(kept + k, tl.load(row + ids, mask=k < num_ending, other=0.0), mask=k < num_ending)
        num_bad = tl.load(bad_lengths + slot)
        _find_bad(
            row, mine, kept, num_ending, tokens + slot * token_stride, known, known - tl.load(num_prompt + slot),
            bad_tokens + slot * bad_stride, starts + slot * starts_stride, num_bad, tl.load(bad_longest + slot), BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        _put(row, mine, kept, num_ending + num_bad, False, BLOCK)
        tl.debug_barrier()
        start = 0
        is_left = 0
        while (is_left == 0) & (start < size):
            at = start + tl.arange(0, WIDE)
            values = tl.load(row + at, mask=at < size, other=float("-inf"))
            is_left = tl.max((values > float("-inf")).to(tl.int32), axis=0)
            start += WIDE
        if is_left == 0:
            tl.debug_barrier()
            _put(row, mine, kept, num_ending + num_bad, True, BLOCK)


def launch(
    logits: torch.Tensor,
    slots: torch.Tensor,
    by_slot: Any,
    tables: Any,
    masks: torch.Tensor,
    mask_rows: torch.Tensor,
    out: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    *,
    chunk: int,
    forbids: bool,
) -> None:
    """Launch both kernels; the second only if a row may forbid something."""
    size = logits.shape[1]
    block = 64
    _adjust_kernel[(triton.cdiv(size, chunk), len(slots))](
        logits, logits.stride(0), size, slots, out, out.stride(0), by_slot.flags, by_slot.penalties, by_slot.num_prompt,
        tables.token_ids, tables.token_ids.stride(0), tables.num_tokens, by_slot.counts, by_slot.counted,
        by_slot.bias_ids, by_slot.bias_values, by_slot.bias_ids.stride(0), by_slot.bias_lengths, masks, mask_rows,
        by_slot.allowed, triton.cdiv(size, 32), CHUNK=chunk, BLOCK=block, num_warps=4 if chunk <= 2048 else 8,
    )  # fmt: skip
    if forbids:
        hits, saved = scratch
        _forbid_kernel[(len(slots),)](
            out, out.stride(0), size, slots, by_slot.flags, by_slot.num_prompt, tables.token_ids,
            tables.token_ids.stride(0), tables.num_tokens, by_slot.ending, by_slot.ending.stride(0),
            by_slot.ending_lengths, by_slot.min_until, by_slot.bad_tokens, by_slot.bad_tokens.stride(0),
            by_slot.bad_starts, by_slot.bad_starts.stride(0), by_slot.bad_lengths, by_slot.bad_longest, hits, saved,
            hits.stride(0), BLOCK=block, WIDE=min(4096, triton.next_power_of_2(size)), num_warps=4,
        )  # fmt: skip
