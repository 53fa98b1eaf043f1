"""add_rms_norm: residual += x; out = RMS norm of it. Bound by bandwidth.

Legend: T rows of SIZE (padded to a power of two). x, residual, out [T, SIZE] with row strides. Grid: (T).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs


@fast
@triton.jit
def _add_rms_norm_kernel(
    x, x_stride, residual, residual_stride, weight, out, out_stride, eps,
    SIZE: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    mask = at < SIZE
    scale = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    wait_for_inputs(PDL)
    values = tl.load(residual + row * residual_stride + at, mask=mask, other=0.0)
    if ADD:
        added = values.to(tl.float32) + tl.load(x + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
        values = added.to(values.dtype)
        tl.store(residual + row * residual_stride + at, values, mask=mask)
    # The norm sees the residual as it is stored, so that a later reader of it computes the same.
    wide = values.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide) / SIZE + eps)
    tl.store(out + row * out_stride + at, (wide * factor * scale).to(out.dtype.element_ty), mask=mask)


def launch(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    options: dict[str, object],
) -> None:
    """Launch once."""
    size = residual.shape[1]
    padded = triton.next_power_of_2(size)
    _add_rms_norm_kernel[(len(residual),)](
        residual if x is None else x, residual.stride(0) if x is None else x.stride(0), residual, residual.stride(0),
        weight, out, out.stride(0), eps, SIZE=size, PADDED=padded, ADD=x is not None,
        num_warps=min(16, max(1, padded // 512)), **options,
    )  # fmt: skip
