"""Rows of a weight matrix as files have them. Knows array formats, not files or models; imports no compiler.

Rows are a matrix's outputs. Kinds: f32, f16, bf16 as [n, k] arrays; q8_0 and q4_1 as GGUF's raw bytes,
[n, k / 32 * block_bytes] uint8. Nothing is rounded: a kind is only another way to store the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.layout import KINDS, QUANT_BLOCK

BLOCK_BYTES = {"q8_0": 34, "q4_1": 20}
PLAIN_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.uint16),
    "bf16": np.dtype(np.uint16),
}


@dataclass(frozen=True, slots=True)
class WeightRows:
    """Rows of a matrix as a file has them. data: see the module; f16 and bf16 as their bits in uint16."""

    kind: str
    num_inputs: int
    data: NDArray[Any]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"weight kind must be one of {KINDS}, got {self.kind!r}")
        expected: tuple[np.dtype[Any], int]
        if self.kind in BLOCK_BYTES:
            if self.num_inputs % QUANT_BLOCK:
                raise ValueError(
                    f"{self.kind} needs a multiple of {QUANT_BLOCK} inputs, got {self.num_inputs}"
                )
            expected = (np.dtype(np.uint8), self.num_inputs // QUANT_BLOCK * BLOCK_BYTES[self.kind])
        else:
            expected = (PLAIN_DTYPES[self.kind], self.num_inputs)
        if (self.data.dtype, self.data.shape[1]) != expected:
            raise ValueError(
                f"{self.kind} rows of {self.num_inputs} inputs are {expected[0]} [n, {expected[1]}], "
                f"got {self.data.dtype} {list(self.data.shape)}"
            )

    @property
    def num_outputs(self) -> int:
        """Rows."""
        return int(self.data.shape[0])

    def to_float32(self) -> NDArray[np.float32]:
        """The matrix [n, k] in float32; the reference of what the kernels compute with."""
        n, k = self.num_outputs, self.num_inputs
        if self.kind == "f32":
            return self.data
        if self.kind == "f16":
            return self.data.view(np.float16).astype(np.float32)
        if self.kind == "bf16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        blocks = self.data.reshape(n, k // QUANT_BLOCK, -1)
        scale = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float32)
        if self.kind == "q8_0":
            return (blocks[:, :, 2:].view(np.int8).astype(np.float32) * scale).reshape(n, k)
        minimum = np.ascontiguousarray(blocks[:, :, 2:4]).view(np.float16).astype(np.float32)
        quants = blocks[:, :, 4:]
        numbers = np.concatenate([quants & 15, quants >> 4], axis=2).astype(np.float32)
        return (numbers * scale + minimum).reshape(n, k)

    def take(self, order: NDArray[np.int64]) -> WeightRows:
        """The rows in another order."""
        return WeightRows(self.kind, self.num_inputs, self.data[order])
