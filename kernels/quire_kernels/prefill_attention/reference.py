"""Prefill attention in plain torch, sequence by sequence."""

from __future__ import annotations

import torch

from quire_kernels.gpu.reference import attend_reference


def prefill_attention_reference(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    *,
    num_heads: int,
    max_query_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    kv_scale: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """See op.prefill_attention. -> [T, H * D] in float64; rows of no sequence are 0."""
    del max_query_len
    head_dim = pool.shape[4]
    out = torch.zeros(len(qkv), num_heads * head_dim, dtype=torch.float64, device=qkv.device)
    for row, length in enumerate(seq_lens.tolist()):
        first, last = query_start_loc[row : row + 2].tolist()
        queries = qkv[first:last, : num_heads * head_dim].view(-1, num_heads, head_dim)
        out[first:last] = attend_reference(
            queries, pool, block_tables[int(table_rows[row])], length, scale=scale, window=window, soft_cap=soft_cap,
            sinks=sinks, kv_scale=kv_scale,
        ).flatten(1)  # fmt: skip
    return out
