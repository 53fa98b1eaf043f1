"""The worker's kernels with attention by a plug-in: keys and values are rotated and written before it is called."""

from __future__ import annotations

import torch

from quire_kernels.gpu.rope import Rope
from quire_worker.attention.device import DeviceAttention
from quire_worker.cuda.triton_kernels import TritonKernels, Workspace


class PluggedKernels(TritonKernels):
    """See KernelSet."""

    def __init__(self, attention: DeviceAttention) -> None:
        super().__init__()
        self._attention = attention
        self.is_capturable = attention.is_capturable

    def tokens_of_tile(self, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """See KernelSet: a plug-in takes whole runs."""
        return 0

    def decode_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        workspace: Workspace,
        *,
        num_heads: int,
        scale: float,
        window: int,
        rope: Rope | None,
        kv_scale: tuple[float, float],
        prefix: torch.Tensor | None,
    ) -> None:
        """See KernelSet."""
        if rope is not None:
            positions, slot_mapping = places_of_last(seq_lens, table_rows, block_tables, pool.shape[3])
            self.rope_kv_write(
                qkv, positions, slot_mapping, rope, pool, num_heads=num_heads, kv_scale=kv_scale
            )
        self._attention.decode(
            qkv, pool, seq_lens, table_rows, block_tables, out, num_heads=num_heads, scale=scale, window=window,
            kv_scale=kv_scale,
        )  # fmt: skip

    def prefill_attention(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        query_start_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        *,
        num_heads: int,
        max_query_len: int,
        scale: float,
        window: int,
        kv_scale: tuple[float, float],
        is_new: bool,
        tiles: torch.Tensor | None,
    ) -> None:
        """See KernelSet."""
        self._attention.prefill(
            qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, num_heads=num_heads,
            max_query_len=max_query_len, scale=scale, window=window, kv_scale=kv_scale,
        )  # fmt: skip


def places_of_last(
    seq_lens: torch.Tensor, table_rows: torch.Tensor, block_tables: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(positions int32, slot_mapping int64) of each sequence's last token; -1 where a row pads. Waits for nothing."""
    positions = (seq_lens - 1).clamp(min=0)
    blocks = block_tables[table_rows.long(), (positions // block_size).long()].long()
    slot_mapping = blocks * block_size + positions % block_size
    return positions, torch.where(seq_lens > 0, slot_mapping, -1)
