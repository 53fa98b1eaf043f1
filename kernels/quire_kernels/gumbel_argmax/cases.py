"""Seeded inputs for tests and benchmarks of gumbel_argmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DrawCase:
    """rows over a vocabulary; kept: only so many tokens can be drawn (0: all)."""

    rows: int
    vocab_size: int
    kept: int = 0

    def logits(self) -> torch.Tensor:
        """[rows, vocab_size], -inf for what can't be drawn."""
        generator = torch.Generator().manual_seed(self.rows)
        logits = torch.randn(self.rows, self.vocab_size, generator=generator) * 2
        if self.kept:
            dropped = torch.rand(self.rows, self.vocab_size, generator=generator).argsort(dim=1)[
                :, self.kept :
            ]
            logits.scatter_(1, dropped, float("-inf"))
        return logits


CASES = [DrawCase(0, 10), DrawCase(1, 1), DrawCase(7, 1003), DrawCase(64, 5), DrawCase(20, 49152, kept=40),
         DrawCase(3, 49152)]  # fmt: skip
