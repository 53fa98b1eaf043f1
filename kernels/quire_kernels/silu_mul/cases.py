"""Seeded inputs for tests and benchmarks of silu_mul."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class GateCase:
    """rows of a width."""

    rows: int
    width: int

    def gate_up(self, dtype: torch.dtype, device: str) -> torch.Tensor:
        """[rows, 2 width]."""
        generator = torch.Generator(device=device).manual_seed(self.rows + self.width)
        return (torch.randn(self.rows, 2 * self.width, generator=generator, device=device) * 4).to(dtype)


CASES = [GateCase(0, 64), GateCase(1, 64), GateCase(7, 1536), GateCase(3, 1000)]
