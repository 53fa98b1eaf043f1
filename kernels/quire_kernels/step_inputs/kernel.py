"""prepare_step and place_sequences: small kernels that move a step's plan into tables and inputs. Bound by latency.

Legend: M slots, N rows of the launch (a batch bucket), B tokens of a block. All pointers are int32 but slot_mapping.

packed       header of 8: sequences, tokens, leading rows of one token; then columns of M: slots, num_new_tokens, query
             starts, num_new_blocks, block offsets; blocks
tokens       [M, tokens of a slot]   known tokens; row stride token_stride
tables       [M, blocks]             block tables; row stride table_stride
Grid of _prepare: (N, tiles of the longest run); of _place: (sequences, tiles).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs

HEADER = 8
COLUMNS = 5
RECORD = 8


# One compiled kernel for every number of rows: Triton would make others for 1 and for multiples of 16.
@fast
@triton.jit(do_not_specialize=["num_rows"])
def _prepare_kernel(
    packed, tokens, token_stride, num_computed, tables, table_stride, token_ids, positions, slot_mapping,
    query_start_loc, seq_lens, table_rows, sample_rows, decode_lens, num_rows,
    M: tl.constexpr, B: tl.constexpr, TILE: tl.constexpr, ONE_TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    tile = tl.program_id(1)
    wait_for_inputs(PDL)
    columns = packed + 8
    num_seqs = tl.load(packed)
    num_tokens = tl.load(packed + 1)
    slot = tl.where(row < num_seqs, tl.load(columns + row), -1)
    there = slot >= 0
    safe = tl.maximum(slot, 0).to(tl.int64)
    count = tl.where(there, tl.load(columns + M + row), 0)
    # Rows that pad have one token each after those of the plan, so that a bucket's rows are its tokens.
    first = tl.where(there, tl.load(columns + 2 * M + row), num_tokens + row - num_seqs)
    start = tl.where(there, tl.load(num_computed + safe), 0)
    table = tables + safe * table_stride
    # New blocks go to the table by every tile alike: each then reads its own writes.
    num_new = tl.where(there, tl.load(columns + 3 * M + row), 0)
    source = columns + 5 * M + tl.load(columns + 4 * M + row)
    held = (start + B - 1) // B
    offsets = tl.arange(0, 128)
    for at in range(0, num_new, 128):
        mask = at + offsets < num_new
        tl.store(table + held + at + offsets, tl.load(source + at + offsets, mask=mask), mask=mask)
    tl.debug_barrier()
    at = tile * TILE + tl.arange(0, TILE)
    mask = at < tl.where(there, count, 1)
    position = start + at
    token = tl.load(tokens + safe * token_stride + position, mask=at < count, other=0)
    block = tl.load(table + position // B, mask=at < count, other=0)
    slot_at = tl.where(there, block.to(tl.int64) * B + position % B, -1)
    tl.store(token_ids + first + at, token, mask=mask)
    tl.store(positions + first + at, tl.where(there, position, 0), mask=mask)
    tl.store(slot_mapping + first + at, slot_at, mask=mask)
    if tile == 0:
        length = tl.where(there, start + count, 0)
        tl.store(seq_lens + row, length)
        tl.store(decode_lens + row, tl.where(row < tl.load(packed + 2), length, 0))
        tl.store(table_rows + row, tl.maximum(slot, 0))
        tl.store(query_start_loc + row, first)
        after = first + tl.where(there, count, 1)
        tl.store(sample_rows + row, after - 1)
        if row == num_rows - 1:
            tl.store(query_start_loc + row + 1, after)
        if ONE_TILE:
            if there:
                tl.store(num_computed + safe, length)


@fast
@triton.jit
def _advance_kernel(packed, num_computed, seq_lens, PDL: tl.constexpr):
    """num_computed of a row's slot, once no program reads the old one any more."""
    row = tl.program_id(0)
    wait_for_inputs(PDL)
    if (row < tl.load(packed)) & (tl.load(packed + 8 + row) >= 0):
        slot = tl.load(packed + 8 + row)
        tl.store(num_computed + slot, tl.load(seq_lens + row))


@fast
@triton.jit
def _place_kernel(
    packed, tokens, token_stride, num_tokens, num_computed, tables, table_stride, TILE: tl.constexpr
):
    record = packed + tl.program_id(0) * 8
    slot = tl.load(record).to(tl.int64)
    known = tl.load(record + 1)
    blocks = tl.load(record + 3)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    token = tl.load(packed + tl.load(record + 4) + at, mask=at < known)
    tl.store(tokens + slot * token_stride + at, token, mask=at < known)
    block = tl.load(packed + tl.load(record + 5) + at, mask=at < blocks)
    tl.store(tables + slot * table_stride + at, block, mask=at < blocks)
    if tl.program_id(1) == 0:
        tl.store(num_tokens + slot, known)
        tl.store(num_computed + slot, tl.load(record + 2))


def launch_prepare(
    packed: torch.Tensor,
    tables: Any,
    inputs: Any,
    *,
    num_rows: int,
    max_query_len: int,
    block_size: int,
    options: dict[str, object],
) -> None:
    """One launch, or two where a row has more than a tile of tokens."""
    tile = 32 if max_query_len == 1 else 256
    tiles = triton.cdiv(max_query_len, tile)
    _prepare_kernel[(num_rows, tiles)](
        packed, tables.token_ids, tables.token_ids.stride(0), tables.num_computed, tables.block_tables,
        tables.block_tables.stride(0), inputs.token_ids, inputs.positions, inputs.slot_mapping, inputs.query_start_loc,
        inputs.seq_lens, inputs.table_rows, inputs.sample_rows, inputs.decode_lens, num_rows, M=len(tables.num_tokens),
        B=block_size, TILE=tile, ONE_TILE=tiles == 1, num_warps=1 if max_query_len == 1 else 4, **options,
    )  # fmt: skip
    if tiles > 1:
        _advance_kernel[(num_rows,)](packed, tables.num_computed, inputs.seq_lens, num_warps=1, **options)


def launch_place(packed: torch.Tensor, tables: Any, *, num_sequences: int, longest: int) -> None:
    """Launch once."""
    tile = 1024
    _place_kernel[(num_sequences, triton.cdiv(longest, tile))](
        packed, tables.token_ids, tables.token_ids.stride(0), tables.num_tokens, tables.num_computed,
        tables.block_tables, tables.block_tables.stride(0), TILE=tile,
    )  # fmt: skip
