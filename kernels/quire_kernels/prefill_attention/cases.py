"""Seeded inputs for tests and benchmarks of prefill attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quire_kernels.gpu.blocks import filled_pool


@dataclass(frozen=True, slots=True)
class PrefillCase:
    """Sequences of (new tokens, tokens in all). first_row: rows of qkv before the first sequence, which no one owns."""

    name: str
    sequences: tuple[tuple[int, int], ...]
    num_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    first_row: int = 0

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """Arguments of the operation but for out. qkv holds the new tokens' keys and values as the pool does."""
        generator = torch.Generator(device=device).manual_seed(len(self.name))
        lengths = [length for _, length in self.sequences]
        pool, tables = filled_pool(
            lengths, lengths, self.kv_heads, self.block_size, self.head_dim, dtype, generator
        )
        starts = (
            torch.tensor([self.first_row, *(count for count, _ in self.sequences)]).cumsum(0).to(torch.int32)
        )
        width = (self.num_heads + 2 * self.kv_heads) * self.head_dim
        count = len(self.sequences)
        tables = tables.flip(0).contiguous()
        qkv = torch.randn(int(starts[-1]), width, generator=generator, device=device).to(dtype)
        for row, (queries, length) in enumerate(self.sequences):
            positions = torch.arange(length - queries, length, device=device)
            blocks = tables[count - 1 - row, positions // self.block_size].long()
            own = pool[blocks, :, :, positions % self.block_size].reshape(queries, -1)
            qkv[starts[row] : starts[row + 1], self.num_heads * self.head_dim :] = own
        return {
            "qkv": qkv,
            "pool": pool,
            "query_start_loc": starts.to(device),
            "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=device),
            "table_rows": torch.arange(count - 1, -1, -1, dtype=torch.int32, device=device),
            "block_tables": tables,
            "num_heads": self.num_heads,
            "max_query_len": max((queries for queries, _ in self.sequences), default=0),
            "scale": self.head_dim**-0.5,
            "window": self.window,
            "soft_cap": self.soft_cap,
            "sinks": torch.randn(self.num_heads, generator=generator, device=device) if self.sinks else None,
        }


CASES = [
    PrefillCase("no sequence", ()),
    PrefillCase("one token", ((1, 1),)),
    PrefillCase("tile borders", ((31, 31), (32, 32), (33, 33), (64, 64), (65, 65))),
    PrefillCase("cached prefixes", ((3, 70), (40, 111), (1, 64), (64, 128))),
    PrefillCase("rows of others", ((20, 40), (5, 5)), first_row=7),
    PrefillCase("one query head per key head", ((150, 160),), num_heads=2, kv_heads=2),
    PrefillCase("three query heads per key head", ((90, 130), (1, 3)), num_heads=9, kv_heads=3),
    PrefillCase("one key head", ((37, 150),), num_heads=16, kv_heads=1),
    PrefillCase("window", ((120, 200), (1, 90), (60, 60)), window=48),
    PrefillCase("soft cap and sinks", ((40, 100), (5, 5)), soft_cap=2.0, sinks=True),
    PrefillCase("window and sinks", ((100, 100),), window=20, sinks=True),
    PrefillCase("large heads", ((30, 60),), head_dim=256, num_heads=2, kv_heads=1),
    PrefillCase("heads of 128", ((70, 90), (16, 16)), head_dim=128),
    PrefillCase("heads of 80", ((40, 90),), head_dim=80),
]
