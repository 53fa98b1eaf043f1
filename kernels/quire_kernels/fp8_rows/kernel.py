"""fp8_rows: rows of activations in fp8 (e4m3), a scale each, in the launch that makes them. Bound by bandwidth.

Legend: T rows of SIZE (padded to a power of two). SOURCE says what a row is made of:
  ROWS  x                                        [T, SIZE]
  NORM  RMS norm of residual (+ x, in place)     residual [T, SIZE], weight [SIZE]
  GATE  silu(gate) * up                          x [T, 2 SIZE], gate first

out    [T, SIZE]  value / scale, rounded to fp8 and kept within its range
scale  [T]        float32: largest magnitude / 448, or static_scale [1] where STATIC
Grid: (T).
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs

ROWS: Final = 0
NORM: Final = 1
GATE: Final = 2


@fast
@triton.jit
def _fp8_rows_kernel(
    x, x_stride, residual, residual_stride, weight, static_scale, out, out_stride, scale, eps,
    SOURCE: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr, STATIC: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < SIZE
    if SOURCE == 1:
        factors = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    if SOURCE == 1:
        held = tl.load(residual + row * residual_stride + at, mask=mask, other=0.0)
        if ADD:
            added = held.to(tl.float32) + tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(
                tl.float32
            )
            held = added.to(held.dtype)
            tl.store(residual + row * residual_stride + at, held, mask=mask)
        # As add_rms_norm: the norm sees the residual as it is stored.
        wide = held.to(tl.float32)
        values = wide * tl.rsqrt(tl.sum(wide * wide) / SIZE + eps) * factors
    else:
        values = tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
        if SOURCE == 2:
            up = tl.load(x + row * x_stride + SIZE + at, mask=mask, other=0.0).to(tl.float32)
            values = values * tl.sigmoid(values) * up
    if STATIC:
        size = tl.load(static_scale)
    else:
        size = tl.maximum(tl.max(tl.abs(values)), 1.0e-10) / 448.0
    tl.store(scale + row, size)
    scaled = tl.minimum(tl.maximum(values / size, -448.0), 448.0)
    tl.store(out + row * out_stride + at, scaled.to(out.dtype.element_ty), mask=mask)


def launch(
    source: int,
    x: torch.Tensor | None,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    static_scale: torch.Tensor | None,
    out: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    options: dict[str, object],
) -> None:
    """Launch once. source: ROWS, NORM or GATE."""
    rows, size = out.shape
    padded = triton.next_power_of_2(size)
    first = x if x is not None else residual
    held = residual if residual is not None else x
    assert first is not None and held is not None
    _fp8_rows_kernel[(rows,)](
        first, first.stride(0), held, held.stride(0), scale if weight is None else weight,
        scale if static_scale is None else static_scale, out, out.stride(0), scale, eps,
        SOURCE=source, SIZE=size, PADDED=padded, ADD=x is not None, STATIC=static_scale is not None,
        num_warps=min(16, max(1, padded // 512)), **options,
    )  # fmt: skip
