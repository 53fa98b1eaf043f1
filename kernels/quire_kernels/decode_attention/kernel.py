"""Decode attention: one new token per sequence, split over the context; the last split to finish combines.

Bound by bandwidth: every key and value is read once.

Legend: S sequences, H query heads, G key/value heads, R = H / G query heads that share one (rows of one MMA tile,
M = R padded), D head dimension (DP padded to a power of two), B tokens of a block, P the most splits of a sequence.

qkv          [S, (H + 2 G) * D]    the new tokens' projections, row stride qkv_stride
pool         [num_blocks, 2, G, B, D]
seq_lens     [S]                   tokens of the sequence with the new one; 0: a row that pads the batch
table_rows   [S]                   the sequence's row of block_tables [rows, blocks], row stride table_stride
cos, sin     [positions, D / 2]
inverse_k, inverse_v, v_scale  of an fp8 pool: 1 / scale of its keys and values; the keys' scale is part of qk_scale
prefix       see kernel_prefix.py; only where Q > 0, and with ROPE
partial      [S, H, T, D]          sums of values of each split, not normalised; T: P, or room for Q more of a prefix
stats        [2, S, H, T]          each split's maximum (base-2 logarithm) and its sum of weights
counters     [S, G]                splits that have finished; zero before and after
Grid: (P, G, S).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import block_ids, to_pool, wait_for_inputs

# Shares of a sequence that there is room for.
MAX_SHARES = 16


@triton.jit
def _normed_scale(values, size: tl.constexpr, eps):
    """1 / sqrt(mean(values^2) + eps) of each row; values beyond size are zero."""
    return tl.rsqrt(tl.sum(values * values, axis=1) / size + eps)


@triton.jit
def rotated(base, norm, rows, row_mask, cos, sin, position, eps,
             D: tl.constexpr, DP: tl.constexpr, HEAD_NORM: tl.constexpr):  # fmt: skip
    """Heads base[row * D + d] after norm and rotation, float32 [rows, DP]."""
    d = tl.arange(0, DP)
    half: tl.constexpr = D // 2
    partner = tl.where(d < half, d + half, d - half)
    mask = row_mask[:, None] & (d < D)[None, :]
    heads = tl.load(base + rows[:, None] * D + d[None, :], mask=mask, other=0.0).to(tl.float32)
    partners = tl.load(base + rows[:, None] * D + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    if HEAD_NORM:
        factor = _normed_scale(heads, D, eps)[:, None]
        weight = tl.load(norm + d, mask=d < D, other=0.0).to(tl.float32)
        partner_weight = tl.load(norm + partner, mask=d < D, other=0.0).to(tl.float32)
        heads = heads * factor * weight[None, :]
        partners = partners * factor * partner_weight[None, :]
    angle = position * half + d % half
    cosine = tl.load(cos + angle, mask=d < D, other=0.0)
    sine = tl.load(sin + angle, mask=d < D, other=0.0)
    sine = tl.where(d < half, -sine, sine)
    return heads * cosine[None, :] + partners * sine[None, :]


@triton.jit
def _capped(scores, soft_cap, SOFT_CAP: tl.constexpr):
    """scores in units of the base-2 exponent; soft_cap likewise."""
    if SOFT_CAP:
        # tanh(x) = 2 sigmoid(2 x) - 1
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores / soft_cap) - 1.0)
    return scores


@triton.jit
def load_tile(pool, table, group, at, end, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr,
               TILE: tl.constexpr):  # fmt: skip
    """Keys and values at .. at + TILE, each [TILE, DP]; zeros from `end` on."""
    d = tl.arange(0, DP)
    positions = at + tl.arange(0, TILE)
    inside = positions < end
    blocks = block_ids(table, at, end, TILE, B)
    offsets = ((blocks * 2 * G + group) * B + positions % B) * D
    if D == DP:
        mask = inside[:, None]
    else:
        mask = inside[:, None] & (d < D)[None, :]
    keys = tl.load(pool + offsets[:, None] + d[None, :], mask=mask, other=0.0)
    values = tl.load(pool + offsets[:, None] + G * B * D + d[None, :], mask=mask, other=0.0)
    return keys, values


@triton.jit
def add_tile(acc, peak, total, q, keys, values, at, first, end, qk_scale, soft_cap,
              TILE: tl.constexpr, SOFT_CAP: tl.constexpr):  # fmt: skip
    """Add a tile to the running softmax."""
    positions = at + tl.arange(0, TILE)
    # An fp8 pool is widened here.
    keys = keys.to(q.dtype)
    values = values.to(q.dtype)
    scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * qk_scale
    scores = _capped(scores, soft_cap, SOFT_CAP)
    scores = tl.where(((positions < end) & (positions >= first))[None, :], scores, float("-inf"))
    # A finite floor: there may be no visible key in a tile.
    higher = tl.maximum(tl.maximum(peak, tl.max(scores, axis=1)), -1.0e30)
    shrink = tl.exp2(peak - higher)
    weights = tl.exp2(scores - higher[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None]
    acc = tl.dot(weights.to(values.dtype), values, acc, input_precision="ieee")
    return acc, higher, total


@triton.jit
def _finish(out, out_stride, partial, stats, counters, sinks, sequence, group, split, active, acc, peak, total,
            num_seqs, num_prefix, H: tl.constexpr, G: tl.constexpr, R: tl.constexpr, M: tl.constexpr,
            D: tl.constexpr, DP: tl.constexpr, P: tl.constexpr, T: tl.constexpr, SINKS: tl.constexpr):  # fmt: skip
    """Write the result of the only split, or this split's share; the last one to arrive adds all shares up, and
    num_prefix shares that are there already."""
    rows = tl.arange(0, M)
    d = tl.arange(0, DP)
    head = group * R + rows
    if active + num_prefix == 1:
        if SINKS:
            sink = tl.load(sinks + head, mask=rows < R, other=0.0).to(tl.float32) * 1.4426950408889634
            total += tl.exp2(sink - peak)
        place = out + sequence.to(tl.int64) * out_stride + head[:, None] * D + d[None, :]
        tl.store(
            place,
            (acc / total[:, None]).to(out.dtype.element_ty),
            mask=(rows < R)[:, None] & (d < D)[None, :],
        )
    else:
        share = (sequence * H + head) * T + split
        mine = partial + share[:, None].to(tl.int64) * D + d[None, :]
        tl.store(mine, acc, mask=(rows < R)[:, None] & (d < D)[None, :])
        tl.store(stats + share, peak, mask=rows < R)
        tl.store(stats + num_seqs * H * T + share, total, mask=rows < R)
        # Every thread's stores come before the one thread's release.
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + sequence * G + group, 1, sem="acq_rel")
        if arrived == active - 1:
            tl.store(counters + sequence * G + group, 0)
            splits = tl.arange(0, T)
            there = (splits < active) | ((splits >= P) & (splits < P + num_prefix))
            for row in tl.static_range(R):
                shares = (sequence * H + group * R + row) * T + splits
                peaks = tl.load(stats + shares, mask=there, other=float("-inf"), cache_modifier=".cg")
                totals = tl.load(
                    stats + num_seqs * H * T + shares, mask=there, other=0.0, cache_modifier=".cg"
                )
                values = tl.load(
                    partial + shares[:, None].to(tl.int64) * D + d[None, :],
                    mask=there[:, None] & (d < D)[None, :], other=0.0, cache_modifier=".cg",
                )  # fmt: skip
                top = tl.max(peaks, axis=0)
                weights = tl.exp2(peaks - top)
                whole = tl.sum(weights * totals, axis=0)
                if SINKS:
                    whole += tl.exp2(
                        tl.load(sinks + group * R + row).to(tl.float32) * 1.4426950408889634 - top
                    )
                result = tl.sum(values * weights[:, None], axis=0) / whole
                place = out + sequence.to(tl.int64) * out_stride + (group * R + row) * D + d
                tl.store(place, result.to(out.dtype.element_ty), mask=d < D)


# One compiled kernel for every number of sequences: Triton would make others for 1 and for multiples of 16.
@fast
@triton.jit(do_not_specialize=["num_seqs"])
def _decode_kernel(
    qkv, qkv_stride, pool, seq_lens, table_rows, block_tables, table_stride, cos, sin, q_norm, k_norm, eps, sinks,
    prefix, out, out_stride, partial, stats, counters, num_seqs, qk_scale, soft_cap, window, split_tokens, inverse_k,
    inverse_v, v_scale,
    H: tl.constexpr, G: tl.constexpr, R: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    B: tl.constexpr, TILE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, ROPE: tl.constexpr,
    HEAD_NORM: tl.constexpr, SOFT_CAP: tl.constexpr, SINKS: tl.constexpr, FP8: tl.constexpr,
    PREFIX_TILE: tl.constexpr, PREFIX_ROOM: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    group = tl.program_id(1)
    sequence = tl.program_id(2)
    # Lengths, tables and earlier tokens are older than the kernel ahead of this one: only qkv is waited for.
    length = tl.load(seq_lens + sequence)
    rows = tl.arange(0, M)
    d = tl.arange(0, DP)
    if length == 0:
        wait_for_inputs(PDL)
        if split == 0:
            place = out + sequence.to(tl.int64) * out_stride + (group * R + rows)[:, None] * D + d[None, :]
            blank = tl.zeros([M, DP], tl.float32).to(out.dtype.element_ty)
            tl.store(place, blank, mask=(rows < R)[:, None] & (d < D)[None, :])
        return
    # Keys in the pool that are attended to: [first, last). With ROPE the new token comes from qkv instead.
    last = length - 1 if ROPE else length
    first = tl.where(window > 0, tl.maximum(0, length - window), 0)
    num_prefix = 0
    if Q > 0:
        shared = tl.load(prefix + 2 + (PREFIX_ROOM + sequence))
        if shared > 0:
            # _prefix_kernel has seen to these, in so many shares.
            first = shared
            num_tiles_shared = tl.cdiv(shared, PREFIX_TILE)
            num_prefix = tl.cdiv(num_tiles_shared, tl.cdiv(num_tiles_shared, Q))
    first_tile = first // TILE
    num_tiles = tl.cdiv(last, TILE) - first_tile
    wanted = tl.minimum(P, tl.maximum(1, tl.cdiv(num_tiles * TILE, split_tokens)))
    tiles_each = tl.maximum(1, tl.cdiv(num_tiles, wanted))
    active = tl.maximum(1, tl.cdiv(num_tiles, tiles_each))
    if split >= active:
        wait_for_inputs(PDL)
        return
    start = (first_tile + split * tiles_each) * TILE
    end = tl.minimum(last, start + tiles_each * TILE)

    table = block_tables + tl.load(table_rows + sequence).to(tl.int64) * table_stride
    token = qkv + sequence.to(tl.int64) * qkv_stride
    queries = token + group * R * D
    wait_for_inputs(PDL)
    if ROPE:
        q = rotated(queries, q_norm, rows, rows < R, cos, sin, length - 1, eps, D, DP, HEAD_NORM)
        q = q.to(qkv.dtype.element_ty)
    else:
        q_mask = (rows < R)[:, None] & (d < D)[None, :]
        q = tl.load(queries + rows[:, None] * D + d[None, :], mask=q_mask, other=0.0)
    if FP8:
        # fp8 becomes float16 in one instruction, and bfloat16 in several.
        if q.dtype == tl.bfloat16:
            q = q.to(tl.float16)

    peak = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, DP], tl.float32)
    if ROPE:
        if split == active - 1:
            # The new token's own key and value: into the pool for later steps, and into the sums from here.
            one = tl.arange(0, 1)
            key = rotated(
                token + (H + group) * D, k_norm, one, one < 1, cos, sin, length - 1, eps, D, DP, HEAD_NORM
            )
            key = to_pool(key, inverse_k, pool.dtype.element_ty, FP8)
            value = tl.load(token + (H + G + group) * D + d, mask=d < D, other=0.0)
            value = to_pool(value.to(tl.float32), inverse_v, pool.dtype.element_ty, FP8)
            block = tl.load(table + last // B).to(tl.int64)
            place = ((block * 2 * G + group) * B + last % B) * D
            tl.store(
                pool + place + one[:, None] * D + d[None, :], key, mask=(one < 1)[:, None] & (d < D)[None, :]
            )
            tl.store(pool + place + G * B * D + d, value, mask=d < D)
            score = tl.sum(q.to(tl.float32) * key.to(tl.float32), axis=1) * qk_scale
            peak = _capped(score, soft_cap, SOFT_CAP)
            total += 1.0
            acc += value.to(tl.float32)[None, :]

    for at in tl.range(start, end, TILE, num_stages=STAGES):
        keys, values = load_tile(pool, table, group, at, end, G, D, DP, B, TILE)
        acc, peak, total = add_tile(acc, peak, total, q, keys, values, at, first, end, qk_scale, soft_cap,
                                     TILE, SOFT_CAP)  # fmt: skip

    if FP8:
        acc = acc * v_scale
    _finish(out, out_stride, partial, stats, counters, sinks, sequence, group, split, active, acc, peak, total,
            num_seqs, num_prefix, H, G, R, M, D, DP, P, T, SINKS)  # fmt: skip


def launch(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rope: tuple[torch.Tensor | None, ...],
    sinks: torch.Tensor | None,
    *,
    num_heads: int,
    scale: float,
    window: int,
    soft_cap: float,
    eps: float,
    kv_scale: tuple[float, float],
    prefix: torch.Tensor | None,
    prefix_shares: int,
    prefix_tile: int,
    plan: tuple[int, int, int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. plan: (most splits, tokens a split has at least, tile, warps, stages)."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    splits, split_tokens, tile, warps, stages = plan
    partial, stats, counters = scratch
    cos, sin, q_norm, k_norm = rope
    shared = num_heads // kv_heads
    unused = qkv
    k_scale, v_scale = kv_scale
    log2e = 1.4426950408889634
    _decode_kernel[(splits, kv_heads, len(seq_lens))](
        qkv, qkv.stride(0), pool, seq_lens, table_rows, block_tables, block_tables.stride(0),
        unused if cos is None else cos, unused if sin is None else sin, unused if q_norm is None else q_norm,
        unused if k_norm is None else k_norm, eps, unused if sinks is None else sinks,
        seq_lens if prefix is None else prefix, out, out.stride(0),
        partial, stats, counters, len(seq_lens), scale * k_scale * log2e, soft_cap * log2e, window, split_tokens,
        1.0 / k_scale, 1.0 / v_scale, v_scale,
        H=num_heads, G=kv_heads, R=shared, M=max(16, triton.next_power_of_2(shared)), D=head_dim,
        DP=triton.next_power_of_2(head_dim), B=block_size, TILE=tile, P=splits, Q=prefix_shares,
        T=splits if prefix is None else MAX_SHARES, PREFIX_TILE=prefix_tile,
        PREFIX_ROOM=0 if prefix is None else (len(prefix) - 2) // 2, ROPE=cos is not None,
        HEAD_NORM=q_norm is not None, SOFT_CAP=soft_cap > 0.0, SINKS=sinks is not None,
        FP8=pool.element_size() == 1, STAGES=stages, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
