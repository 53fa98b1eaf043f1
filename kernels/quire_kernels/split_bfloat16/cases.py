"""Seeded inputs for tests and benchmarks of split_bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SplitCase:
    """rows of a number of inputs; scale makes them large or tiny."""

    rows: int
    num_inputs: int
    scale: float = 1.0

    def x(self) -> torch.Tensor:
        """x [rows, num_inputs]."""
        generator = torch.Generator().manual_seed(self.rows * 1000 + self.num_inputs)
        return torch.randn(self.rows, self.num_inputs, generator=generator) * self.scale


# No row, one, a full pass and its neighbours, several passes; large and small values.
CASES = [
    SplitCase(0, 64), SplitCase(1, 576), SplitCase(16, 32), SplitCase(17, 96), SplitCase(33, 64, 1e-6),
    SplitCase(100, 64, 1e6),
]  # fmt: skip
