"""The block pool: keys and values of every layer in blocks, allocated once; its addresses never change.

Layout: [num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]; within a block and head, keys lie as
[head_dim, block_size] and values as [block_size, head_dim], so that kernels read whole vectors of either.
Which block belongs to whom is the scheduler's business; block 0 is never handed out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quire_kernels.cpu.memory import zeros
from quire_worker.models.spec import DecoderSpec


class BlockPool:
    """Keys and values of all layers. `layers[i]` is layer i, [num_blocks, 2, kv heads, block_size, head_dim]."""

    def __init__(
        self,
        spec: DecoderSpec,
        num_blocks: int,
        block_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (spec.num_layers, num_blocks, 2, spec.num_kv_heads, block_size, spec.head_dim)
        if device.type == "cpu" and dtype == torch.float32:
            # Pages become resident as blocks are used, so a large pool costs nothing before it is needed.
            self.tensor = torch.from_numpy(zeros(shape, "float32"))
        else:
            self.tensor = torch.zeros(shape, device=device, dtype=dtype)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers = list(self.tensor.unbind(0))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self.tensor[:, 0].numel() * self.tensor.element_size()

    def copy_blocks(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Copy blocks, all sources read before any target is written. ValueError for ids outside the pool."""
        if len(source_ids) != len(target_ids):
            raise ValueError(f"{len(source_ids)} copy sources for {len(target_ids)} targets")
        if not source_ids:
            return
        for block_id in (*source_ids, *target_ids):
            if not 0 < block_id < self.num_blocks:
                raise ValueError(f"block id {block_id} is outside 1..{self.num_blocks - 1}")
        source = torch.tensor(source_ids, device=self.tensor.device)
        target = torch.tensor(target_ids, device=self.tensor.device)
        self.tensor[:, target] = self.tensor[:, source]


def keys_of(layer_pool: torch.Tensor) -> torch.Tensor:
    """A view of a layer's keys as [num_blocks, kv heads, head_dim, block_size]."""
    num_blocks, _, kv_heads, block_size, head_dim = layer_pool.shape
    return layer_pool[:, 0].view(num_blocks, kv_heads, head_dim, block_size)


def values_of(layer_pool: torch.Tensor) -> torch.Tensor:
    """A view of a layer's values as [num_blocks, kv heads, block_size, head_dim]."""
    return layer_pool[:, 1]
