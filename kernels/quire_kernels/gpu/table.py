"""block_ids: a tile's entries of a block table."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def block_ids(table, at, end, TILE: tl.constexpr, B: tl.constexpr):
    """int64 [TILE]: the blocks of positions at .. at + TILE; 0 for positions from `end` on."""
    positions = at + tl.arange(0, TILE)
    return tl.load(table + positions // B, mask=positions < end, other=0).to(tl.int64)
