"""Seeded inputs for tests and benchmarks of fp8_rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowsCase:
    """rows of a size; static: by a given scale, which cuts some values off."""

    rows: int
    size: int
    static: bool = False
    add: bool = False

    def draw(self, dtype: torch.dtype, device: str, *, width: int = 1) -> torch.Tensor:
        """[rows, width * size], rows of very different magnitudes."""
        generator = torch.Generator().manual_seed(self.rows + self.size + width)
        rows = torch.randn(self.rows, width * self.size, generator=generator)
        return (rows * 2.0 ** torch.arange(-3, self.rows - 3).clamp(max=6)[:, None]).to(dtype).to(device)

    def static_scale(self, device: str) -> torch.Tensor | None:
        """None, or float32 [1]."""
        return torch.full((1,), 2.0 / 448.0, device=device) if self.static else None


CASES = [
    RowsCase(0, 64),
    RowsCase(1, 64),
    RowsCase(3, 300, add=True),
    RowsCase(9, 4096),
    RowsCase(5, 1000, static=True, add=True),
    RowsCase(2, 14336),
]
