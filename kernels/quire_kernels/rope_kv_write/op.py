"""rope_kv_write: the CPU kernel for float32 where it can be compiled, plain torch everywhere else."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.rope_kv_write.reference import rope_kv_write_reference


def rope_kv_write(
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
    """Norm (where weights are given) and rotate queries in place; norm, rotate and store keys; store values.

    qkv: [T, (num_heads + 2 G) * D]; positions: int32 [T], rows of cos and sin [max_position, D / 2];
    slot_mapping: int64 [T], block_id * B + offset; pool: [num_blocks, 2, G, B, D], keys of a block and head lying as
    [D, B], values as [B, D].
    """
    if pool.dim() != 5 or pool.shape[1] != 2:
        raise ValueError(
            f"pool must be [num_blocks, 2, kv heads, block_size, head_dim], got {list(pool.shape)}"
        )
    if positions.dtype != torch.int32 or slot_mapping.dtype != torch.int64:
        raise ValueError(
            f"positions must be int32, slot_mapping int64; got {positions.dtype}, {slot_mapping.dtype}"
        )
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm are given together or not at all")
    if qkv.device.type != "cpu" or qkv.dtype != torch.float32 or not has_compiler():
        rope_kv_write_reference(qkv, positions, slot_mapping, cos, sin, pool, num_heads, q_norm, k_norm, eps)
        return
    from quire_kernels.cpu.team import run_once
    from quire_kernels.rope_kv_write import cpu

    norms: dict[str, NDArray[np.float32] | None] = {"q_norm": None, "k_norm": None}
    if q_norm is not None and k_norm is not None:
        norms = {"q_norm": q_norm.numpy(), "k_norm": k_norm.numpy()}
    step = cpu.bind(
        qkv.numpy(), positions.numpy(), slot_mapping.numpy(), cos.numpy(), sin.numpy(), pool.numpy(),
        np.array([len(qkv)], dtype=np.int64), num_heads=num_heads, eps=eps, **norms,
    )  # fmt: skip
    run_once(step)
