"""gemv: one row of activations through a weight. Bound by the bandwidth of the weight's bytes.

Legend: N outputs, K inputs. A program computes OUTS outputs; weights are read along K, 16 bytes a thread, in chunks of
CHUNK inputs, DEPTH of them ahead. The first of them are asked for before the wait for the kernel that computes x.

x         [K]
weight    [N, K], or [2 N, K] with gate rows before up rows; row stride weight_stride
scale     [N] or [2 N] float32: of each row of an fp8 weight
norm      [K]: x is RMS-normed first. The factor of the whole row is applied to the result, so that one pass is enough
residual  [N], out [N]; out may be residual
Grid: (N / OUTS).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire_kernels.gpu.fast_launch import fast


@fast
@triton.jit
def _gemv_kernel(
    x, weight, weight_stride, scale, norm, residual, bias, out, eps, N,
    K: tl.constexpr, OUTS: tl.constexpr, CHUNK: tl.constexpr, NORM: tl.constexpr, RESIDUAL: tl.constexpr,
    BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * OUTS
    outs = first + tl.arange(0, OUTS)
    within = tl.minimum(outs, N - 1).to(tl.int64)
    k = tl.arange(0, CHUNK)[None, :]
    rows = weight + within[:, None] * weight_stride + k
    up_rows = rows + tl.cast(N, tl.int64) * weight_stride
    ahead = tl.load(rows, mask=k < K, other=0.0, eviction_policy="evict_first")
    if GATED:
        ahead_up = tl.load(up_rows, mask=k < K, other=0.0, eviction_policy="evict_first")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sums = tl.zeros([OUTS, CHUNK], tl.float32)
    up_sums = tl.zeros([OUTS, CHUNK], tl.float32)
    squares = tl.zeros([1, CHUNK], tl.float32)
    for at in tl.static_range(0, K, CHUNK):
        chunk = ahead
        if GATED:
            up_chunk = ahead_up
        if at + CHUNK < K:
            ahead = tl.load(
                rows + (at + CHUNK), mask=at + CHUNK + k < K, other=0.0, eviction_policy="evict_first"
            )
            if GATED:
                ahead_up = tl.load(
                    up_rows + (at + CHUNK), mask=at + CHUNK + k < K, other=0.0, eviction_policy="evict_first"
                )
        values = tl.load(x + at + k, mask=at + k < K, other=0.0).to(tl.float32)
        if NORM:
            squares += values * values
            values = values * tl.load(norm + at + k, mask=at + k < K, other=0.0).to(tl.float32)
        sums += chunk.to(tl.float32) * values
        if GATED:
            up_sums += up_chunk.to(tl.float32) * values
    result = tl.sum(sums, axis=1)
    if SCALED:
        result *= tl.load(scale + within)
    if NORM:
        factor = tl.rsqrt(tl.sum(squares) / K + eps)
        result = result * factor
    if GATED:
        up = tl.sum(up_sums, axis=1)
        if SCALED:
            up *= tl.load(scale + N + within)
        if NORM:
            up = up * factor
        result = result * tl.sigmoid(result) * up
    if BIAS:
        result += tl.load(bias + within).to(tl.float32)
    if RESIDUAL:
        result += tl.load(residual + within).to(tl.float32)
    tl.store(out + outs, result.to(out.dtype.element_ty), mask=outs < N)


def launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor | None,
    norm: torch.Tensor | None,
    residual: torch.Tensor | None,
    bias: torch.Tensor | None,
    *,
    eps: float,
    gated: bool,
    plan: tuple[int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. plan: (outputs of a program, chunk, warps)."""
    outs, chunk, warps = plan
    num_outputs = out.shape[-1]
    _gemv_kernel[(triton.cdiv(num_outputs, outs),)](
        x, weight, weight.stride(0), x if scale is None else scale, x if norm is None else norm,
        x if residual is None else residual, x if bias is None else bias, out, eps, num_outputs,
        K=weight.shape[1], OUTS=outs, CHUNK=chunk,
        NORM=norm is not None, RESIDUAL=residual is not None, BIAS=bias is not None, GATED=gated,
        SCALED=scale is not None, num_warps=warps, num_stages=1, **options,
    )  # fmt: skip
