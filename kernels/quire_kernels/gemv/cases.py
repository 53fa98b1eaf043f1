"""Seeded inputs for tests and benchmarks of gemv and skinny_linear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ProductCase:
    """rows x [K] through N outputs, with what is done before and after."""

    num_outputs: int
    num_inputs: int
    rows: int = 1
    norm: bool = False
    residual: bool = False
    bias: bool = False
    gated: bool = False

    def inputs(self, dtype: torch.dtype, device: str) -> dict[str, Any]:
        """Arguments of the operation but for out; products are of the order of 1."""
        generator = torch.Generator(device=device).manual_seed(self.num_outputs + self.num_inputs)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=device)

        height = self.num_outputs * (2 if self.gated else 1)
        return {
            "x": draw(self.rows, self.num_inputs).to(dtype),
            "weight": (draw(height, self.num_inputs) * self.num_inputs**-0.5).to(dtype),
            "norm": draw(self.num_inputs).to(dtype) if self.norm else None,
            "eps": 1e-5,
            "residual": draw(self.rows, self.num_outputs).to(dtype) if self.residual else None,
            "bias": draw(self.num_outputs).to(dtype) if self.bias else None,
            "gated": self.gated,
        }


CASES = [
    ProductCase(1, 64),
    ProductCase(130, 576, norm=True),
    ProductCase(64, 96, residual=True, bias=True),
    ProductCase(33, 3000, gated=True, norm=True),
    ProductCase(48, 2048, gated=True),
    ProductCase(70, 9000, residual=True),
]
