"""Seeded weights and shapes for tests and benchmarks of the linear operation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from quire_kernels.cpu.layout import KINDS, QUANT_BLOCK
from quire_kernels.linear.rows import BLOCK_BYTES, WeightRows


@dataclass(frozen=True, slots=True)
class LinearCase:
    """rows x [k] through an n x k weight of a kind."""

    kind: str
    rows: int
    num_outputs: int
    num_inputs: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.rows}x{self.num_outputs}x{self.num_inputs}"

    def x(self) -> torch.Tensor:
        """Activations [rows, k]."""
        return torch.randn(self.rows, self.num_inputs, generator=torch.Generator().manual_seed(self.rows))

    def weight(self, seed: int = 0) -> WeightRows:
        """A weight whose products are of the order of 1."""
        return random_weight(self.kind, self.num_outputs, self.num_inputs, seed)


def random_weight(kind: str, num_outputs: int, num_inputs: int, seed: int = 0) -> WeightRows:
    """A weight of a kind with random content."""
    generator = np.random.default_rng(seed)
    scale = num_inputs**-0.5
    if kind in BLOCK_BYTES:
        shape = (num_outputs, num_inputs // QUANT_BLOCK, BLOCK_BYTES[kind])
        data = generator.integers(0, 256, shape, dtype=np.uint8)
        steps = generator.uniform(0.5, 1.5, (*shape[:2], 1)) * scale
        if kind == "q8_0":
            data[..., :2] = (steps / 64).astype(np.float16).view(np.uint8)
        else:
            data[..., :2] = (steps / 4).astype(np.float16).view(np.uint8)
            data[..., 2:4] = (-2 * steps).astype(np.float16).view(np.uint8)
        return WeightRows(kind, num_inputs, data.reshape(num_outputs, -1))
    values = (generator.standard_normal((num_outputs, num_inputs)) * scale).astype(np.float32)
    if kind == "f32":
        return WeightRows(kind, num_inputs, values)
    if kind == "f16":
        return WeightRows(kind, num_inputs, values.astype(np.float16).view(np.uint16))
    return WeightRows(kind, num_inputs, (values.view(np.uint32) >> 16).astype(np.uint16))


# No row, one, the tallest tile and its neighbours, several tiles; outputs that fill tiles and that do not.
CASES = [
    LinearCase(kind, rows, outputs, inputs)
    for kind in KINDS
    for rows, outputs, inputs in [
        (0, 64, 64), (1, 64, 64), (2, 96, 576), (5, 33, 64), (6, 64, 96), (7, 64, 96), (13, 40, 96), (14, 64, 64),
        (15, 64, 64), (32, 100, 128), (61, 64, 1536),
    ]
]  # fmt: skip
