"""Prefill attention whose new keys and values come from the projections themselves, not from their blocks.

Bound by the tensor cores. In qkv the keys of a run lie row after row, so that the bulk copy engine brings whole tiles;
through a block table every tile is a gather. Only what was cached before the step is read from blocks. No windows.

Legend as in kernel.py. In addition:
rows             descriptor of qkv as [T, (H + 2 G) * D], boxes of [TILE, D]; queries and keys rotated
tiles            how many entries follow, then sequence << 16 | tile of each tile of tokens; for captured launches
Grid: (G, S, tiles of the longest run), or (G, most entries of the list); the last tiles, which see most keys, start
first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs
from quire_kernels.prefill_attention.kernel import add_scores, attend_range


@triton.jit
def _attend_own(acc, peak, total, q, rows, first_row, key_column, value_column, start, end, count, tokens, qk_scale,
                soft_cap, TILE: tl.constexpr, MASKED: tl.constexpr, SOFT_CAP: tl.constexpr,
                STAGES: tl.constexpr):  # fmt: skip
    """Add the run's own keys start .. end. MASKED: some rows do not see all of them."""
    for at in tl.range(start, end, TILE, num_stages=STAGES):
        keys = rows.load([first_row + at, key_column])
        values = rows.load([first_row + at, value_column])
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
        if MASKED:
            keys_at = at + tl.arange(0, TILE)
            visible = keys_at[None, :] <= tokens[:, None]
            # Rows behind the run are another sequence's: whatever they hold must not reach this one.
            values = tl.where((keys_at < count)[:, None], values, 0.0)
        else:
            visible = True
        acc, peak, total = add_scores(
            acc, peak, total, scores, values, visible, qk_scale, soft_cap, MASKED, SOFT_CAP
        )
    return acc, peak, total


@fast
@triton.jit
def _own_keys_kernel(
    qkv, qkv_stride, rows, pool, query_start_loc, seq_lens, table_rows, block_tables, table_stride, sinks, tiles, out,
    out_stride, qk_scale, soft_cap,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, LISTED: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = H // G
    TOKENS: tl.constexpr = ROWS // R
    group = tl.program_id(0)
    wait_for_inputs(PDL)
    if LISTED:
        if tl.program_id(1) >= tl.load(tiles):
            return
        entry = tl.load(tiles + 1 + tl.program_id(1))
        sequence = entry >> 16
        tile = entry & 65535
    else:
        sequence = tl.program_id(1)
        tile = tl.num_programs(2) - 1 - tl.program_id(2)
    first_row = tl.load(query_start_loc + sequence)
    count = tl.load(query_start_loc + sequence + 1) - first_row
    if tile * TOKENS >= count:
        return
    cached = tl.load(seq_lens + sequence) - count
    within = tl.arange(0, ROWS)
    # Rows without a token see the first key only: finite, and never stored.
    row_mask = (tile * TOKENS + within // R < count) & (within < TOKENS * R)
    tokens = tl.where(row_mask, tile * TOKENS + within // R, 0)
    d = tl.arange(0, D)
    at = (first_row + tokens).to(tl.int64)
    head = group * R + within % R
    q = tl.load(
        qkv + at[:, None] * qkv_stride + head[:, None] * D + d[None, :], mask=row_mask[:, None], other=0.0
    )
    acc = tl.zeros([ROWS, D], tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if cached > 0:
        table = block_tables + tl.load(table_rows + sequence).to(tl.int64) * table_stride
        everything = tl.zeros([ROWS], tl.int32) + cached - 1
        whole = cached // TILE * TILE
        acc, peak, total = attend_range(
            acc, peak, total, q, pool, table, group, 0, whole, everything, cached, 0, qk_scale, soft_cap,
            G, D, D, B, TILE, False, SOFT_CAP, STAGES)  # fmt: skip
        acc, peak, total = attend_range(
            acc, peak, total, q, pool, table, group, whole, cached, everything, cached, 0, qk_scale, soft_cap,
            G, D, D, B, TILE, True, SOFT_CAP, STAGES)  # fmt: skip
    key_column = (H + group) * D
    value_column = (H + G + group) * D
    # Keys below `seen` are seen by every row with a token.
    seen = (tile * TOKENS + 1) // TILE * TILE
    end = tl.minimum(count, (tile + 1) * TOKENS)
    acc, peak, total = _attend_own(
        acc, peak, total, q, rows, first_row, key_column, value_column, 0, seen, count, tokens, qk_scale, soft_cap,
        TILE, False, SOFT_CAP, STAGES)  # fmt: skip
    acc, peak, total = _attend_own(
        acc, peak, total, q, rows, first_row, key_column, value_column, seen, end, count, tokens, qk_scale, soft_cap,
        TILE, True, SOFT_CAP, STAGES)  # fmt: skip
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        total += tl.exp2(sink - peak)
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + at[:, None] * out_stride + head[:, None] * D + d[None, :], result, mask=row_mask[:, None])


def can_run(qkv: torch.Tensor, pool: torch.Tensor, window: int) -> bool:
    """Whether the copy engine can take boxes of these tensors, and the pool holds what qkv holds."""
    head_dim = pool.shape[4]
    return (
        window == 0
        and pool.dtype == qkv.dtype
        and head_dim & (head_dim - 1) == 0
        and qkv.stride(0) * qkv.element_size() % 16 == 0
        and qkv.data_ptr() % 16 == 0
    )


def launch(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    tiles: torch.Tensor | None,
    *,
    num_heads: int,
    max_query_len: int,
    scale: float,
    soft_cap: float,
    plan: tuple[int, int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. plan: (rows and keys of a tile, warps, stages)."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    rows, tile, warps, stages = plan
    log2e = 1.4426950408889634
    boxes = TensorDescriptor(qkv, list(qkv.shape), list(qkv.stride()), [tile, head_dim])
    grid = (kv_heads, len(seq_lens), triton.cdiv(max_query_len, rows // (num_heads // kv_heads)))
    if tiles is not None:
        grid = (kv_heads, len(tiles) - 1, 1)
    _own_keys_kernel[grid](
        qkv, qkv.stride(0), boxes, pool, query_start_loc, seq_lens, table_rows, block_tables, block_tables.stride(0),
        qkv if sinks is None else sinks, table_rows if tiles is None else tiles, out, out.stride(0), scale * log2e,
        soft_cap * log2e, H=num_heads, G=kv_heads, D=head_dim, B=block_size, ROWS=rows, TILE=tile,
        SOFT_CAP=soft_cap > 0.0, SINKS=sinks is not None, LISTED=tiles is not None, STAGES=stages, num_warps=warps,
        num_stages=stages, **options,
    )  # fmt: skip
