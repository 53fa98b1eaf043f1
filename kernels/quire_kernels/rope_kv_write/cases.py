"""Seeded inputs for tests and benchmarks of rope_kv_write."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RopeCase:
    """tokens with H query and G key/value heads of D; head_norm: norm weights are given."""

    tokens: int
    num_heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    head_norm: bool = False
    num_blocks: int = 8

    def inputs(self) -> dict[str, object]:
        """Arguments of the operation; slots are spread over blocks, none twice, and never in block 0."""
        generator = torch.Generator().manual_seed(self.tokens)
        width = (self.num_heads + 2 * self.kv_heads) * self.head_dim
        angles = torch.outer(torch.arange(200.0), torch.linspace(1.0, 0.001, self.head_dim // 2))
        slots = torch.randperm((self.num_blocks - 1) * self.block_size, generator=generator)[: self.tokens]
        norm = torch.randn(self.head_dim, generator=generator) if self.head_norm else None
        return {
            "qkv": torch.randn(self.tokens, width, generator=generator),
            "positions": torch.randint(200, (self.tokens,), generator=generator, dtype=torch.int32),
            "slot_mapping": slots + self.block_size,
            "cos": angles.cos(),
            "sin": angles.sin(),
            "pool": torch.full(
                (self.num_blocks, 2, self.kv_heads, self.block_size, self.head_dim), float("nan")
            ),
            "num_heads": self.num_heads,
            "q_norm": norm,
            "k_norm": None if norm is None else norm.flip(0),
            "eps": 1e-6,
        }


CASES = [
    RopeCase(0), RopeCase(1), RopeCase(17), RopeCase(100), RopeCase(5, head_norm=True), RopeCase(9, 4, 4, 32, 32),
]  # fmt: skip
