"""Seeded inputs for tests and benchmarks of paged attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Sequences of (query tokens, tokens in all). Whatever no sequence owns in the pool is NaN."""

    name: str
    sequences: tuple[tuple[int, int], ...]
    num_heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    window: int = 0

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> dict[str, torch.Tensor | float | int]:
        """Arguments of the operation."""
        generator = torch.Generator().manual_seed(len(self.name))
        blocks = [-(-length // self.block_size) for _, length in self.sequences]
        num_blocks = 1 + sum(blocks)
        order = torch.randperm(num_blocks - 1, generator=generator, dtype=torch.int32) + 1
        tables = torch.zeros((len(blocks), max(blocks, default=1)), dtype=torch.int32)
        pool = torch.full((num_blocks, 2, self.kv_heads, self.block_size, self.head_dim), float("nan"))
        start = 0
        for index, (count, (_, length)) in enumerate(zip(blocks, self.sequences, strict=True)):
            tables[index, :count] = order[start : start + count]
            start += count
            self._write(pool, tables[index], length, generator)
        counts = torch.tensor([0, *(queries for queries, _ in self.sequences)])
        return {
            "queries": torch.randn(int(counts.sum()), self.num_heads, self.head_dim, generator=generator),
            "pool": pool,
            "query_start_loc": counts.cumsum(0).to(torch.int32),
            "seq_lens": torch.tensor([length for _, length in self.sequences], dtype=torch.int32),
            "block_tables": tables,
            "scale": self.head_dim**-0.5,
            "window": self.window,
        }

    def _write(
        self, pool: torch.Tensor, table: torch.Tensor, length: int, generator: torch.Generator
    ) -> None:
        keys = pool[:, 0].view(len(pool), self.kv_heads, self.head_dim, self.block_size)
        for position in range(length):
            block, offset = int(table[position // self.block_size]), position % self.block_size
            shape = (self.kv_heads, self.head_dim)
            keys[block, :, :, offset] = torch.randn(shape, generator=generator)
            pool[block, 1, :, offset] = torch.randn(shape, generator=generator)


CASES = [
    AttentionCase("no sequence", ()),
    AttentionCase("one token", ((1, 1),)),
    AttentionCase("decodes at block borders", tuple((1, n) for n in (1, 15, 16, 17, 32, 33))),
    AttentionCase("decodes at chunk borders", tuple((1, n) for n in (127, 128, 129, 256, 257, 300))),
    AttentionCase("prefill", ((70, 70),)),
    AttentionCase("chunk of a prefill", ((37, 150),)),
    AttentionCase("mixed", ((1, 40), (25, 25), (1, 200), (13, 141), (4, 4))),
    AttentionCase("one query head per key head", ((9, 30), (1, 50)), num_heads=4, kv_heads=4),
    AttentionCase("many query heads per key head", ((9, 30), (1, 50)), num_heads=32, kv_heads=2),
    AttentionCase("small heads, large blocks", ((20, 90), (1, 64)), head_dim=32, block_size=32),
    AttentionCase("window", ((60, 300), (1, 290), (1, 10)), window=48),
    AttentionCase("large heads", ((5, 40),), head_dim=128),
]
