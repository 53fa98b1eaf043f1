"""Seeded inputs for tests and benchmarks of argmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ArgmaxCase:
    """rows of a size; levels: values are drawn from so few that the largest is there many times."""

    rows: int
    size: int
    levels: int = 0

    def x(self) -> torch.Tensor:
        """[rows, size]."""
        generator = torch.Generator().manual_seed(self.rows + self.size)
        if self.levels:
            return torch.randint(self.levels, (self.rows, self.size), generator=generator).float()
        return torch.randn(self.rows, self.size, generator=generator) - 5.0


CASES = [ArgmaxCase(0, 8), ArgmaxCase(1, 1), ArgmaxCase(3, 1024), ArgmaxCase(5, 1025), ArgmaxCase(4, 5000, levels=3),
         ArgmaxCase(33, 49152)]  # fmt: skip
