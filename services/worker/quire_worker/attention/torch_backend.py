"""Attention in plain torch: gathers each sequence's blocks and calls scaled_dot_product_attention. The reference."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire_worker.attention.base import AttentionInputs
from quire_worker.kv_cache import keys_of, values_of


class TorchAttention:
    """See AttentionBackend. Runs on any device and in any dtype."""

    def write(
        self, keys: torch.Tensor, values: torch.Tensor, pool: torch.Tensor, inputs: AttentionInputs
    ) -> None:
        """See AttentionBackend."""
        block_size = pool.shape[3]
        block_ids = inputs.slot_mapping // block_size
        offsets = inputs.slot_mapping % block_size
        keys_of(pool)[block_ids, :, :, offsets] = keys
        values_of(pool)[block_ids, :, offsets] = values

    def attend(
        self, queries: torch.Tensor, pool: torch.Tensor, inputs: AttentionInputs, *, scale: float, window: int
    ) -> torch.Tensor:
        """See AttentionBackend."""
        out = torch.empty_like(queries)
        for index, length in enumerate(inputs.lengths):
            first, last = inputs.query_starts[index], inputs.query_starts[index + 1]
            blocks = inputs.block_tables[index, : -(-length // pool.shape[3])].long()
            keys = keys_of(pool)[blocks].permute(1, 0, 3, 2).flatten(1, 2)[:, :length]
            values = values_of(pool)[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            mask = _visible(last - first, length, window, queries.device)
            out[first:last] = scaled_dot_product_attention(
                queries[first:last].transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)  # fmt: skip
        return out.flatten(1)


def _visible(num_queries: int, length: int, window: int, device: torch.device) -> torch.Tensor:
    """Which keys each query sees: bool [num_queries, length]."""
    positions = torch.arange(length - num_queries, length, device=device)[:, None]
    keys = torch.arange(length, device=device)[None]
    visible = keys <= positions
    return visible & (keys > positions - window) if window else visible
