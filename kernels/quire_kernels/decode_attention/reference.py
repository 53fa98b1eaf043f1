"""Decode attention in plain torch, sequence by sequence."""

from __future__ import annotations

import torch

from quire_kernels.gpu.reference import attend_reference, held, rotate_reference
from quire_kernels.gpu.rope import Rope


def decode_attention_reference(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    num_heads: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    rope: Rope | None = None,
    kv_scale: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """See op.decode_attention. -> [S, H * D] in float64; with rope, new keys and values go to the pool."""
    kv_heads, block_size, head_dim = pool.shape[2:]
    out = torch.zeros(len(qkv), num_heads * head_dim, dtype=torch.float64, device=qkv.device)
    for row, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        table = block_tables[int(table_rows[row])]
        queries, keys, values = qkv[row].view(-1, head_dim).split([num_heads, kv_heads, kv_heads])
        if rope is not None:
            block, offset = int(table[(length - 1) // block_size]), (length - 1) % block_size
            rotated = rotate_reference(keys, rope, length - 1, rope.k_norm)
            pool[block, 0, :, offset] = held(rotated, kv_scale[0], pool.dtype)
            pool[block, 1, :, offset] = held(values.double(), kv_scale[1], pool.dtype)
            queries = rotate_reference(queries, rope, length - 1, rope.q_norm).to(qkv.dtype)
        attended = attend_reference(
            queries[None], pool, table, length, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks,
            kv_scale=kv_scale,
        )  # fmt: skip
        out[row] = attended.flatten()
    return out
