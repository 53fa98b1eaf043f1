"""Seeded inputs for tests and benchmarks of decode attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quire_kernels.gpu.blocks import filled_pool
from quire_kernels.gpu.rope import Rope


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """Sequences of these lengths, the new token included; 0 is a row that pads the batch. Unowned blocks are NaN."""

    name: str
    lengths: tuple[int, ...]
    num_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    rope: bool = True
    head_norm: bool = False

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """Arguments of the operation but for out and workspace. Table rows are not the identity."""
        generator = torch.Generator(device=device).manual_seed(len(self.name))
        options: dict[str, Any] = {"generator": generator, "device": device}
        # With rope the new token is not in the pool yet.
        cached = [max(0, length - self.rope) for length in self.lengths]
        pool, tables = filled_pool(
            cached, [*self.lengths], self.kv_heads, self.block_size, self.head_dim, dtype, generator
        )
        width = (self.num_heads + 2 * self.kv_heads) * self.head_dim
        rows = torch.arange(len(self.lengths) - 1, -1, -1, dtype=torch.int32, device=device)
        return {
            "qkv": torch.randn(len(self.lengths), width, **options).to(dtype),
            "pool": pool,
            "seq_lens": torch.tensor(self.lengths, dtype=torch.int32, device=device),
            "table_rows": rows,
            "block_tables": tables.flip(0).contiguous(),
            "num_heads": self.num_heads,
            "scale": self.head_dim**-0.5,
            "window": self.window,
            "soft_cap": self.soft_cap,
            "sinks": torch.randn(self.num_heads, **options) if self.sinks else None,
            "rope": self._rope(dtype, options) if self.rope else None,
        }

    def _rope(self, dtype: torch.dtype, options: dict[str, Any]) -> Rope:
        positions = torch.arange(max(self.lengths) + 1.0, device=options["device"])
        frequencies = torch.linspace(1.0, 0.001, self.head_dim // 2, device=options["device"])
        angles = torch.outer(positions, frequencies)
        if not self.head_norm:
            return Rope(angles.cos(), angles.sin())
        q_norm, k_norm = (torch.randn(self.head_dim, **options).to(dtype) for _ in range(2))
        return Rope(angles.cos(), angles.sin(), q_norm, k_norm, eps=1e-6)


CASES = [
    DecodeCase("one token", (1,)),
    DecodeCase("block borders", (1, 2, 15, 16, 17, 32, 33)),
    DecodeCase("rows that pad", (40, 0, 3, 0)),
    DecodeCase("many splits", (700, 5, 513, 512, 129)),
    DecodeCase("head norms", (70, 33), head_norm=True),
    DecodeCase("already in the pool", (1, 16, 300), rope=False),
    DecodeCase("one query head per key head", (50, 9), num_heads=4, kv_heads=4),
    DecodeCase("three query heads per key head", (50, 9), num_heads=9, kv_heads=3),
    DecodeCase("one key head", (130, 20), num_heads=32, kv_heads=1),
    DecodeCase("window", (300, 290, 10, 48, 49, 1), window=48),
    DecodeCase("soft cap and sinks", (100, 1, 33), soft_cap=2.0, sinks=True),
    DecodeCase("sinks over splits", (600, 1, 33), sinks=True, window=400),
    DecodeCase("large heads", (40, 200), head_dim=256, num_heads=4, kv_heads=1),
    DecodeCase("heads of 128", (40, 333), head_dim=128),
    DecodeCase("heads of 80", (40, 77), head_dim=80),
]
