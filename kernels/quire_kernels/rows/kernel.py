"""rows: out[i] = table[indices[i]]. Bound by bandwidth.

table [N, SIZE] with row stride, indices [R] int32, out [R, SIZE]. Grid: (R, chunks of a row).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from quire_kernels.gpu.fast_launch import fast
from quire_kernels.gpu.kernel import wait_for_inputs


@fast
@triton.jit
def _rows_kernel(table, table_stride, indices, out, out_stride, size, CHUNK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    wait_for_inputs(PDL)
    source = tl.load(indices + row).to(tl.int64)
    values = tl.load(table + source * table_stride + at, mask=at < size)
    tl.store(out + row * out_stride + at, values, mask=at < size)


def launch(table: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, options: dict[str, object]) -> None:
    """Launch once."""
    chunk = 1024
    _rows_kernel[(len(indices), triton.cdiv(out.shape[1], chunk))](
        table, table.stride(0), indices, out, out.stride(0), out.shape[1], CHUNK=chunk, **options
    )
