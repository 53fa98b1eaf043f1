"""Kinds of weights and the size of their tiles. Pure arithmetic: imports no compiler."""

from __future__ import annotations

# The numbering is part of the kernels: a kind is passed to them as its index.
KINDS = ("f32", "f16", "bf16", "q8_0", "q4_1")
QUANT_BLOCK = 32


def tile_bytes(kind: str, k: int, columns: int) -> int:
    """Bytes of one packed weight tile of `columns` columns and inner dimension `k`."""
    if kind == "f32":
        return 4 * k * columns
    if kind in ("f16", "bf16"):
        return 2 * k * columns
    blocks = k // QUANT_BLOCK
    per_block = {"q8_0": 2 + QUANT_BLOCK, "q4_1": 4 + QUANT_BLOCK // 2}[kind]
    return blocks * per_block * columns
