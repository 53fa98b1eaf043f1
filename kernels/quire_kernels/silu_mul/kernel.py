"""silu_mul: silu(gate) * up. Bound by bandwidth.

Legend: T rows, I the width of gate and of up. gate_up [T, 2 I], out [T, I] with row strides. Grid: (I / BLOCK, T).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs


@fast
@triton.jit
def _silu_mul_kernel(gate_up, gate_up_stride, out, out_stride, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    wait_for_inputs(PDL)
    gate = tl.load(gate_up + row * gate_up_stride + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * gate_up_stride + size + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


def launch(gate_up: torch.Tensor, out: torch.Tensor, options: dict[str, object]) -> None:
    """Launch once."""
    block, rows = 1024, len(out)
    for start in range(0, rows, 65535):
        part, to = gate_up[start : start + 65535], out[start : start + 65535]
        _silu_mul_kernel[(triton.cdiv(out.shape[1], block), len(to))](
            part, part.stride(0), to, to.stride(0), out.shape[1], BLOCK=block, num_warps=4, **options
        )
