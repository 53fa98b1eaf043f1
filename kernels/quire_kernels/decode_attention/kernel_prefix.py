"""Decode attention over a prefix that many sequences share: keys are read once for a tile of sequences, not for each.

Bound by bandwidth. What it leaves are shares that _decode_kernel, launched behind it, adds to those of the rest of each
sequence. Legend as in kernel.py. In addition: N sequences of a tile, whose N * R query heads are the tile's rows; Q
splits of the prefix; T shares of a sequence and head, of which the Q of the prefix begin at P.

prefix       [2 + 2 * slots] int32   tokens of the prefix; how many rows share it; these rows, from 2 on; from 2 + slots
                                     on, by row, how many of its tokens are shared: all of the prefix, or 0
Grid: (Q, G, tiles of sequences).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.decode_attention.kernel import add_tile, load_tile
from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs

# Sequences of a tile times query heads that share a key head.
ROWS = 64
TILE = 64


@triton.jit
def _rotated_rows(heads_at, norm, mask, cos, sin, positions, eps,
                  D: tl.constexpr, DP: tl.constexpr, HEAD_NORM: tl.constexpr):  # fmt: skip
    """A head per row at heads_at [rows], each at its own position, normed and rotated, float32 [rows, DP]."""
    d = tl.arange(0, DP)
    half: tl.constexpr = D // 2
    partner = tl.where(d < half, d + half, d - half)
    both = mask[:, None] & (d < D)[None, :]
    heads = tl.load(heads_at[:, None] + d[None, :], mask=both, other=0.0).to(tl.float32)
    partners = tl.load(heads_at[:, None] + partner[None, :], mask=both, other=0.0).to(tl.float32)
    if HEAD_NORM:
        factor = tl.rsqrt(tl.sum(heads * heads, axis=1) / D + eps)[:, None]
        weight = tl.load(norm + d, mask=d < D, other=0.0).to(tl.float32)
        partner_weight = tl.load(norm + partner, mask=d < D, other=0.0).to(tl.float32)
        heads = heads * factor * weight[None, :]
        partners = partners * factor * partner_weight[None, :]
    angle = positions[:, None] * half + (d % half)[None, :]
    cosine = tl.load(cos + angle, mask=both, other=0.0)
    sine = tl.load(sin + angle, mask=both, other=0.0)
    return heads * cosine + partners * tl.where((d < half)[None, :], -sine, sine)


@fast
@triton.jit(do_not_specialize=["num_seqs"])
def _prefix_kernel(
    qkv, qkv_stride, pool, seq_lens, table_rows, block_tables, table_stride, prefix, cos, sin, q_norm, eps, partial,
    stats, num_seqs, qk_scale, soft_cap,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, T: tl.constexpr, HEAD_NORM: tl.constexpr,
    SOFT_CAP: tl.constexpr, PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    R: tl.constexpr = H // G
    N: tl.constexpr = ROWS // R
    split = tl.program_id(0)
    group = tl.program_id(1)
    first = tl.program_id(2) * N
    # The step's plan is older than the kernel ahead of this one.
    length = tl.load(prefix)
    count = tl.load(prefix + 1)
    tiles_each = tl.cdiv(tl.cdiv(length, TILE), Q)
    start = split * tiles_each * TILE
    if (first >= count) | (start >= length):
        wait_for_inputs(PDL)
        return
    end = tl.minimum(length, start + tiles_each * TILE)
    rows = tl.arange(0, ROWS)
    mask = (first + rows // R < count) & (rows < N * R)
    sequence = tl.load(prefix + 2 + first + rows // R, mask=mask, other=0)
    position = tl.load(seq_lens + sequence, mask=mask, other=1) - 1
    head = group * R + rows % R
    table = block_tables + tl.load(table_rows + tl.load(prefix + 2 + first)).to(tl.int64) * table_stride
    wait_for_inputs(PDL)
    heads_at = qkv + sequence.to(tl.int64) * qkv_stride + head * D
    q = _rotated_rows(heads_at, q_norm, mask, cos, sin, position, eps, D, DP, HEAD_NORM).to(
        qkv.dtype.element_ty
    )
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    for at in tl.range(start, end, TILE, num_stages=STAGES):
        keys, values = load_tile(pool, table, group, at, end, G, D, DP, B, TILE)
        acc, peak, total = add_tile(
            acc, peak, total, q, keys, values, at, 0, end, qk_scale, soft_cap, TILE, SOFT_CAP
        )
    d = tl.arange(0, DP)
    share = (sequence * H + head) * T + P + split
    mine = partial + share[:, None].to(tl.int64) * D + d[None, :]
    tl.store(mine, acc, mask=mask[:, None] & (d < D)[None, :])
    tl.store(stats + share, peak, mask=mask)
    tl.store(stats + num_seqs * H * T + share, total, mask=mask)


def launch(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    prefix: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    rope: tuple[torch.Tensor | None, ...],
    *,
    num_heads: int,
    scale: float,
    soft_cap: float,
    eps: float,
    shares: tuple[int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. shares: (at most of the rest of a sequence, of the prefix, room for both)."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    rest, of_prefix, room = shares
    cos, sin, q_norm, _ = rope
    log2e = 1.4426950408889634
    tiles = triton.cdiv(len(seq_lens), ROWS // (num_heads // kv_heads))
    _prefix_kernel[(of_prefix, kv_heads, tiles)](
        qkv, qkv.stride(0), pool, seq_lens, table_rows, block_tables, block_tables.stride(0), prefix, cos, sin,
        qkv if q_norm is None else q_norm, eps, *scratch, len(seq_lens), scale * log2e, soft_cap * log2e, H=num_heads,
        G=kv_heads, D=head_dim, DP=triton.next_power_of_2(head_dim), B=block_size, ROWS=ROWS, TILE=TILE, P=rest,
        Q=of_prefix, T=room, HEAD_NORM=q_norm is not None, SOFT_CAP=soft_cap > 0.0, STAGES=3, num_warps=4,
        num_stages=3, **options,
    )  # fmt: skip
