"""rope_kv_write_gpu: the operation on the GPU's pool, whose keys lie as [B, D] and not as the CPU's [D, B]."""

from __future__ import annotations

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.gpu.reference import held, rotate_reference
from quire_kernels.gpu.rope import Rope
from quire_kernels.rope_kv_write import kernel


def rope_kv_write_gpu(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    rope: Rope,
    pool: torch.Tensor,
    *,
    num_heads: int,
    kv_scale: tuple[float, float] = (1.0, 1.0),
    pdl: bool = False,
) -> None:
    """Norm (where rope has weights) and rotate queries and keys in place; store keys and values.

    qkv: [T, (num_heads + 2 G) * D]; positions: int32 [T]; slot_mapping: int64 [T], block_id * B + offset, negative for
    tokens that are not stored; pool: [num_blocks, 2, G, B, D]. kv_scale: an fp8 pool holds keys and values divided by
    these two, cut to its range.
    """
    if pool.dim() != 5 or pool.shape[1] != 2 or not pool.is_contiguous():
        raise ValueError(f"pool must be contiguous [num_blocks, 2, G, B, D], got {list(pool.shape)}")
    if positions.dtype != torch.int32 or slot_mapping.dtype != torch.int64:
        raise ValueError(
            f"positions must be int32, slot_mapping int64; got {positions.dtype}, {slot_mapping.dtype}"
        )
    if qkv.shape[1:] != ((num_heads + 2 * pool.shape[2]) * pool.shape[4],) or qkv.stride(1) != 1:
        raise ValueError(f"qkv must have rows of (H + 2 G) * D, got {list(qkv.shape)}")
    if not len(qkv) == len(positions) == len(slot_mapping):
        raise ValueError(f"{len(qkv)} rows with {len(positions)} positions and {len(slot_mapping)} slots")
    check_device("rope_kv_write_gpu", qkv, positions, slot_mapping, rope.cos, pool)
    if len(qkv):
        kernel.launch(qkv, positions, slot_mapping, rope, pool, num_heads, kv_scale, pdl_options(pdl))


def rope_kv_write_gpu_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    rope: Rope,
    pool: torch.Tensor,
    *,
    num_heads: int,
    kv_scale: tuple[float, float] = (1.0, 1.0),
) -> None:
    """The same in plain torch and float64, token by token."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    for row in range(len(qkv)):
        queries, keys, values = qkv[row].view(-1, head_dim).split([num_heads, kv_heads, kv_heads])
        position, slot = int(positions[row]), int(slot_mapping[row])
        queries[:] = rotate_reference(queries, rope, position, rope.q_norm).to(qkv.dtype)
        rotated = rotate_reference(keys, rope, position, rope.k_norm)
        keys[:] = rotated.to(qkv.dtype)
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            pool[block, 0, :, offset] = held(rotated, kv_scale[0], pool.dtype)
            pool[block, 1, :, offset] = held(values.double(), kv_scale[1], pool.dtype)
