"""Rotary embedding and the write into the pool in plain torch, token by token."""

from __future__ import annotations

import torch

from quire_kernels.rms_norm.reference import rms_norm_reference


def rope_kv_write_reference(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    pool: torch.Tensor,
    num_heads: int,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """See op.rope_kv_write. Queries change in place; keys and values go to the pool."""
    num_blocks, _, kv_heads, block_size, head_dim = pool.shape
    keys = pool[:, 0].view(num_blocks, kv_heads, head_dim, block_size)
    for token in range(len(qkv)):
        heads = qkv[token, : (num_heads + 2 * kv_heads) * head_dim].view(-1, head_dim)
        queries, key, value = heads.split([num_heads, kv_heads, kv_heads])
        if q_norm is not None and k_norm is not None:
            queries[:] = rms_norm_reference(queries, q_norm, eps)
            key = rms_norm_reference(key, k_norm, eps)
        position = int(positions[token])
        queries[:] = _rotate(queries, cos[position], sin[position])
        block, offset = divmod(int(slot_mapping[token]), block_size)
        keys[block, :, :, offset] = _rotate(key, cos[position], sin[position])
        pool[block, 1, :, offset] = value


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
