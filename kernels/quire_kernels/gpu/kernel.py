"""Small jitted functions that several kernels are made of."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_inputs(PDL: tl.constexpr):
    """Before the first read of what an earlier kernel wrote. Dependents may start from here on; they wait in turn."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def to_pool(values, inverse_scale, kind, FP8: tl.constexpr):
    """float32 values as the pool of `kind` holds them: in fp8 divided by their scale and kept within its range."""
    if FP8:
        values = tl.minimum(tl.maximum(values * inverse_scale, -448.0), 448.0)
    return values.to(kind)


@triton.jit
def block_ids(table, at, end, TILE: tl.constexpr, B: tl.constexpr):
    """int64 [TILE]: the blocks of positions at .. at + TILE; 0 for positions from `end` on."""
    positions = at + tl.arange(0, TILE)
    return tl.load(table + positions // B, mask=positions < end, other=0).to(tl.int64)
