"""Seeded inputs for tests and benchmarks of add_rms_norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class AddNormCase:
    """rows of a size; add: something is added first; scale makes values large or tiny."""

    rows: int
    size: int
    add: bool = True
    scale: float = 1.0

    def inputs(self, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """Arguments of the operation but for out."""
        generator = torch.Generator(device=device).manual_seed(self.rows + self.size)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device).to(dtype)

        return {
            "x": draw(self.rows, self.size) * self.scale if self.add else None,
            "residual": draw(self.rows, self.size) * self.scale,
            "weight": draw(self.size),
            "eps": 1e-6,
        }


CASES = [
    AddNormCase(0, 64), AddNormCase(1, 576), AddNormCase(3, 100, add=False), AddNormCase(33, 64, scale=1e-2),
    AddNormCase(5, 4096, scale=30.0), AddNormCase(4, 1024, add=False),
]  # fmt: skip
