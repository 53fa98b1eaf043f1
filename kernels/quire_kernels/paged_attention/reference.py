"""Paged attention in plain torch, sequence by sequence and head by head."""

from __future__ import annotations

import torch


def paged_attention_reference(
    queries: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """See op.paged_attention."""
    num_blocks, _, kv_heads, block_size, head_dim = pool.shape
    key_pool = pool[:, 0].view(num_blocks, kv_heads, head_dim, block_size)
    group = queries.shape[1] // kv_heads
    out = torch.empty_like(queries)
    for sequence, length in enumerate(seq_lens.tolist()):
        first, last = query_start_loc[sequence : sequence + 2].tolist()
        table = block_tables[sequence, : -(-length // block_size)].long()
        positions = torch.arange(length - (last - first), length)[:, None]
        keys_at = torch.arange(length)[None]
        hidden = keys_at > positions
        if window:
            hidden |= keys_at <= positions - window
        for head in range(queries.shape[1]):
            keys = key_pool[table, head // group].transpose(1, 2).reshape(-1, head_dim)[:length]
            values = pool[table, 1, head // group].reshape(-1, head_dim)[:length]
            scores = (queries[first:last, head] @ keys.T * scale).masked_fill(hidden, float("-inf"))
            out[first:last, head] = torch.softmax(scores, dim=-1) @ values
    return out
