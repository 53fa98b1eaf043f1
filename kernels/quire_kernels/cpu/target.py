"""How wide this machine's vectors are, and the tile sizes that fit its registers.

Legend: a tile is `tile_rows` activations times `TILE_COLUMNS` output columns, held in vector registers while the
inner dimension is walked. Packed weights are laid out in tiles, so their layout belongs to the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from llvmlite import binding as llvm


@dataclass(frozen=True, slots=True)
class Target:
    """Vector facts. lanes: float32 values in a vector; row_steps: tile heights for which kernels are built."""

    lanes: int
    row_steps: tuple[int, ...]

    @property
    def tile_columns(self) -> int:
        """Output columns of a linear tile: two vectors."""
        return 2 * self.lanes

    @property
    def max_tile_rows(self) -> int:
        """Tallest tile whose accumulators fit the registers."""
        return self.row_steps[-1]


def _detect() -> Target:
    # NUMBA_CPU_FEATURES makes numba compile for another processor; the tiles must be that one's.
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    wide = llvm.get_host_cpu_features().get("avx512f") if chosen is None else "+avx512f" in chosen.split(",")
    if wide:
        # 32 registers: 14 x 2 accumulators, 2 weights, 1 activation.
        return Target(lanes=16, row_steps=(1, 2, 3, 4, 6, 8, 10, 12, 14))
    # AVX2 has 16 registers: 6 x 2 accumulators, 2 weights, 1 activation. Narrower machines split each vector.
    return Target(lanes=8, row_steps=(1, 2, 3, 4, 5, 6))


TARGET = _detect()
