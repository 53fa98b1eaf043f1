"""Seeded inputs for tests and benchmarks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowsCase:
    """count indices into a matrix of rows x size."""

    count: int
    rows: int
    size: int

    def inputs(self, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """table and indices; the first and the last row are among them if there is room."""
        generator = torch.Generator(device=device).manual_seed(self.count)
        table = torch.randn(self.rows, self.size, generator=generator, device=device).to(dtype)
        indices = torch.randint(
            self.rows, (self.count,), generator=generator, device=device, dtype=torch.int32
        )
        indices[:1], indices[1:2] = 0, self.rows - 1
        return table, indices


CASES = [
    RowsCase(0, 4, 64),
    RowsCase(1, 1, 64),
    RowsCase(9, 100, 576),
    RowsCase(5, 50, 4096),
    RowsCase(3, 20, 1000),
]
