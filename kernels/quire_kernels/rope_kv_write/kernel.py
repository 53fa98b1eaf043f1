"""rope_kv_write on a GPU: head norms, rotation and the write into blocks, for any number of tokens. Bound by bandwidth.

Legend: T tokens, H query heads, G key/value heads, D head dimension (DP padded), B tokens of a block.

qkv           [T, (H + 2 G) * D]  row stride qkv_stride; queries and keys change in place
positions     [T] int32           rows of cos and sin [positions, D / 2]
slot_mapping  [T] int64           block_id * B + offset; negative: a token that is not stored
pool          [num_blocks, 2, G, B, D]; in fp8 it holds keys * inverse_k and values * inverse_v
Grid: (T). A program takes all heads of a token; HEADS and KV are H and G padded to powers of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.decode_attention.kernel import rotated
from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import to_pool, wait_for_inputs
from quire_kernels.gpu.rope import Rope


@fast
@triton.jit
def _rope_kv_write_kernel(
    qkv, qkv_stride, positions, slot_mapping, cos, sin, q_norm, k_norm, eps, pool, inverse_k, inverse_v,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, B: tl.constexpr, HEADS: tl.constexpr,
    KV: tl.constexpr, HEAD_NORM: tl.constexpr, FP8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = qkv + row * qkv_stride
    wait_for_inputs(PDL)
    position = tl.load(positions + row)
    slot = tl.load(slot_mapping + row)
    d = tl.arange(0, DP)
    heads = tl.arange(0, HEADS)
    groups = tl.arange(0, KV)
    queries = rotated(token, q_norm, heads, heads < H, cos, sin, position, eps, D, DP, HEAD_NORM)
    keys = rotated(token + H * D, k_norm, groups, groups < G, cos, sin, position, eps, D, DP, HEAD_NORM)
    # Partners were read by other threads: all reads come before the first write.
    tl.debug_barrier()
    mask = (heads < H)[:, None] & (d < D)[None, :]
    kv_mask = (groups < G)[:, None] & (d < D)[None, :]
    tl.store(token + heads[:, None] * D + d[None, :], queries.to(qkv.dtype.element_ty), mask=mask)
    tl.store(token + H * D + groups[:, None] * D + d[None, :], keys.to(qkv.dtype.element_ty), mask=kv_mask)
    if slot >= 0:
        values = tl.load(token + (H + G) * D + groups[:, None] * D + d[None, :], mask=kv_mask, other=0.0)
        place = pool + (slot // B * (2 * G * B) + slot % B) * D + groups[:, None] * (B * D) + d[None, :]
        kind = pool.dtype.element_ty
        tl.store(place, to_pool(keys, inverse_k, kind, FP8), mask=kv_mask)
        tl.store(place + G * B * D, to_pool(values.to(tl.float32), inverse_v, kind, FP8), mask=kv_mask)


def launch(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    rope: Rope,
    pool: torch.Tensor,
    num_heads: int,
    kv_scale: tuple[float, float],
    options: dict[str, object],
) -> None:
    """Launch once."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    heads = triton.next_power_of_2(num_heads)
    _rope_kv_write_kernel[(len(qkv),)](
        qkv, qkv.stride(0), positions, slot_mapping, rope.cos, rope.sin, qkv if rope.q_norm is None else rope.q_norm,
        qkv if rope.k_norm is None else rope.k_norm, rope.eps, pool, 1.0 / kv_scale[0], 1.0 / kv_scale[1],
        H=num_heads, G=kv_heads, D=head_dim,
        DP=triton.next_power_of_2(head_dim), B=block_size, HEADS=heads, KV=triton.next_power_of_2(kv_heads),
        HEAD_NORM=rope.q_norm is not None, FP8=pool.element_size() == 1,
        num_warps=8 if heads * head_dim >= 4096 else 4, **options,
    )  # fmt: skip
