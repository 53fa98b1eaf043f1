"""Prefill attention: tiles of new tokens against all keys they see, read from blocks.

Bound by the tensor cores. A tile's rows are (token, query head of the group): the heads that share keys share their
loads, and the triangle that is computed in vain at the diagonal is as narrow as a tile has tokens.

Legend: T new tokens of the batch, S sequences, H query heads, G key/value heads, R = H / G, D head dimension (DP padded
to a power of two), B tokens of a block, TOKENS = ROWS / R query tokens and TILE keys of a tile.

qkv              [T, (H + 2 G) * D]   queries rotated; row stride qkv_stride
pool             [num_blocks, 2, G, B, D], with the new tokens' keys and values
query_start_loc  [S + 1]              rows of a sequence in qkv and out
v_scale          of an fp8 pool, what values are multiplied by; the keys' scale is part of qk_scale
seq_lens         [S]                  tokens of a sequence, the new ones are the last of them
table_rows       [S]                  the sequence's row of block_tables
Grid: (G, S, tiles of the longest run); the last tiles, which see most keys, start first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import block_ids, wait_for_inputs


@triton.jit
def add_scores(acc, peak, total, scores, values, visible, qk_scale, soft_cap, MASKED: tl.constexpr,
               SOFT_CAP: tl.constexpr):  # fmt: skip
    """Add a tile's raw scores [rows, keys] and values [keys, D] to the running softmax. MASKED: visible counts."""
    if SOFT_CAP:
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores * qk_scale / soft_cap) - 1.0)
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    # A finite floor: a row may see no key of a tile.
    if SOFT_CAP:
        higher = tl.maximum(tl.maximum(peak, tl.max(scores, axis=1)), -1.0e30)
        weights = tl.exp2(scores - higher[:, None])
    else:
        higher = tl.maximum(tl.maximum(peak, tl.max(scores, axis=1) * qk_scale), -1.0e30)
        weights = tl.exp2(scores * qk_scale - higher[:, None])
    shrink = tl.exp2(peak - higher)
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    return acc, higher, total


@triton.jit
def attend_range(acc, peak, total, q, pool, table, group, start, end, positions, length, window, qk_scale,
                  soft_cap, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr, TILE: tl.constexpr,
                  MASKED: tl.constexpr, SOFT_CAP: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Add keys start .. end, in tiles, to the running softmax. MASKED: some rows do not see all of them."""
    d = tl.arange(0, DP)
    for at in tl.range(start, end, TILE, num_stages=STAGES):
        keys_at = at + tl.arange(0, TILE)
        inside = keys_at < length
        blocks = block_ids(table, at, length, TILE, B)
        place = pool + (((blocks * 2 * G + group) * B + keys_at % B) * D)[:, None] + d[None, :]
        if MASKED or D != DP:
            mask = inside[:, None] & (d < D)[None, :]
            keys = tl.load(place, mask=mask, other=0.0)
            values = tl.load(place + G * B * D, mask=mask, other=0.0)
        else:
            keys = tl.load(place)
            values = tl.load(place + G * B * D)
        # An fp8 pool is widened here.
        keys = keys.to(q.dtype)
        values = values.to(q.dtype)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        visible = True
        if MASKED:
            visible = keys_at[None, :] <= positions[:, None]
            if window > 0:
                visible &= keys_at[None, :] > positions[:, None] - window
        acc, peak, total = add_scores(
            acc, peak, total, scores, values, visible, qk_scale, soft_cap, MASKED, SOFT_CAP
        )
    return acc, peak, total


@fast
@triton.jit
def _prefill_kernel(
    qkv, qkv_stride, pool, query_start_loc, seq_lens, table_rows, block_tables, table_stride, sinks, out, out_stride,
    qk_scale, soft_cap, window, v_scale,
    G: tl.constexpr, R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, WINDOWED: tl.constexpr, FP8: tl.constexpr,
    PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    TOKENS: tl.constexpr = ROWS // R
    group = tl.program_id(0)
    sequence = tl.program_id(1)
    tile = tl.num_programs(2) - 1 - tl.program_id(2)
    wait_for_inputs(PDL)
    first_row = tl.load(query_start_loc + sequence)
    count = tl.load(query_start_loc + sequence + 1) - first_row
    if tile * TOKENS >= count:
        return
    length = tl.load(seq_lens + sequence)
    cached = length - count
    rows = tl.arange(0, ROWS)
    tokens = tile * TOKENS + rows // R
    d = tl.arange(0, DP)
    row_mask = (tokens < count) & (rows < TOKENS * R)
    # Rows without a token see key 0 like the sequence's first token: finite, and never stored.
    positions = tl.where(row_mask, cached + tokens, 0)
    at = (first_row + tokens).to(tl.int64)
    head = group * R + rows % R
    mask = row_mask[:, None] & (d < D)[None, :]
    q = tl.load(qkv + at[:, None] * qkv_stride + head[:, None] * D + d[None, :], mask=mask, other=0.0)
    if FP8:
        # fp8 becomes float16 in one instruction, and bfloat16 in several.
        if q.dtype == tl.bfloat16:
            q = q.to(tl.float16)
    table = block_tables + tl.load(table_rows + sequence).to(tl.int64) * table_stride

    acc = tl.zeros([ROWS, DP], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    end = tl.minimum(length, cached + (tile + 1) * TOKENS)
    if WINDOWED:
        start = tl.maximum(0, cached + tile * TOKENS - window + 1) // TILE * TILE
        acc, peak, total = attend_range(
            acc, peak, total, q, pool, table, group, start, end, positions, length, window, qk_scale, soft_cap,
            G, D, DP, B, TILE, True, SOFT_CAP, STAGES)  # fmt: skip
    else:
        # Keys below `whole` are seen by every row with a token.
        whole = (cached + tile * TOKENS + 1) // TILE * TILE
        acc, peak, total = attend_range(
            acc, peak, total, q, pool, table, group, 0, whole, positions, length, 0, qk_scale, soft_cap,
            G, D, DP, B, TILE, False, SOFT_CAP, STAGES)  # fmt: skip
        acc, peak, total = attend_range(
            acc, peak, total, q, pool, table, group, whole, end, positions, length, 0, qk_scale, soft_cap,
            G, D, DP, B, TILE, True, SOFT_CAP, STAGES)  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total += tl.exp2(sink - peak)
    if FP8:
        acc = acc * v_scale
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + at[:, None] * out_stride + head[:, None] * D + d[None, :], result, mask=mask)


def launch(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    *,
    num_heads: int,
    max_query_len: int,
    scale: float,
    window: int,
    soft_cap: float,
    kv_scale: tuple[float, float],
    plan: tuple[int, int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. plan: (rows and keys of a tile, warps, stages)."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    rows, tile, warps, stages = plan
    shared = num_heads // kv_heads
    log2e = 1.4426950408889634
    grid = (kv_heads, len(seq_lens), triton.cdiv(max_query_len, rows // shared))
    _prefill_kernel[grid](
        qkv, qkv.stride(0), pool, query_start_loc, seq_lens, table_rows, block_tables, block_tables.stride(0),
        qkv if sinks is None else sinks, out, out.stride(0), scale * kv_scale[0] * log2e, soft_cap * log2e, window,
        kv_scale[1], G=kv_heads, R=shared, D=head_dim, DP=triton.next_power_of_2(head_dim), B=block_size, ROWS=rows,
        TILE=tile, SOFT_CAP=soft_cap > 0.0, SINKS=sinks is not None, WINDOWED=window > 0,
        FP8=pool.element_size() == 1, STAGES=stages, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
