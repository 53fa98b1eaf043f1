"""Seeded inputs for tests and benchmarks of rms_norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NormCase:
    """rows of a size; scale makes them large or tiny."""

    rows: int
    size: int
    scale: float = 1.0

    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x [rows, size] and weight [size]."""
        generator = torch.Generator().manual_seed(self.rows * 1000 + self.size)
        x = torch.randn(self.rows, self.size, generator=generator) * self.scale
        return x, torch.randn(self.size, generator=generator)


CASES = [NormCase(0, 64), NormCase(1, 576), NormCase(3, 100), NormCase(33, 64, 1e-4), NormCase(5, 576, 1e4)]
