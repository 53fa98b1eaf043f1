"""skinny_linear: up to 64 rows of activations through a weight. Bound by the bandwidth of the weight's bytes.

The weight is the left operand of the tensor cores, so that its rows fill their tiles and the few rows of activations
are the narrow side. K is cut into SPLITS; the last split to finish adds all shares in order: no second kernel, and the
same bits every time.

Legend: m rows (MP padded), N outputs, K inputs; a program has OUTS outputs, and reads CHUNK inputs at a time.

x         [m, K]    row stride x_stride
weight    [N, K], or [2 N, K] with gate rows before up rows; row stride weight_stride
scale     [rows of weight] float32: of each row of an fp8 weight, which is widened to x's type on its way
residual  [m, N], out [m, N]; out may be residual
partial   [SPLITS, tiles, 1 or 2, OUTS, MP] float32
counters  [tiles]   splits that have finished; zero before and after
Grid: (SPLITS, N / OUTS).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire_kernels.gpu.fast_launch import fast


# One compiled kernel for every number of rows: Triton would make others for 1 and for multiples of 16.
@fast
@triton.jit(do_not_specialize=["m"])
def _skinny_kernel(
    x, x_stride, weight, weight_stride, scale, residual, residual_stride, bias, out, out_stride, partial, counters, m,
    N, K, split_chunks, MP: tl.constexpr, OUTS: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr,
    RESIDUAL: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr,
    PDL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    tile = tl.program_id(1)
    outs = tile * OUTS + tl.arange(0, OUTS)
    within = tl.minimum(outs, N - 1).to(tl.int64)
    rows = tl.arange(0, MP)
    k = tl.arange(0, CHUNK)
    left = weight + within[:, None] * weight_stride + k[None, :]
    up_left = left + tl.cast(N, tl.int64) * weight_stride
    right = x + tl.minimum(rows, m - 1)[:, None].to(tl.int64) * x_stride + k[None, :]
    acc = tl.zeros([OUTS, MP], tl.float32)
    up_acc = tl.zeros([OUTS, MP], tl.float32)
    start = split * split_chunks * CHUNK
    end = tl.minimum(K, start + split_chunks * CHUNK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for at in tl.range(start, end, CHUNK, num_stages=STAGES):
        if EVEN:
            values = tl.load(right + at)
            block = tl.load(left + at)
        else:
            values = tl.load(right + at, mask=(at + k < K)[None, :], other=0.0)
            block = tl.load(left + at, mask=(at + k < K)[None, :], other=0.0)
        if SCALED:
            block = block.to(values.dtype)
        acc = tl.dot(block, tl.trans(values), acc, input_precision="ieee")
        if GATED:
            if EVEN:
                up_block = tl.load(up_left + at)
            else:
                up_block = tl.load(up_left + at, mask=(at + k < K)[None, :], other=0.0)
            if SCALED:
                up_block = up_block.to(values.dtype)
            up_acc = tl.dot(up_block, tl.trans(values), up_acc, input_precision="ieee")

    last = True
    if SPLITS > 1:
        parts: tl.constexpr = 2 if GATED else 1
        within_tile = tl.arange(0, OUTS)[:, None] * MP + rows[None, :]
        stride = tl.num_programs(1) * (parts * OUTS * MP)
        mine = partial + tile * (parts * OUTS * MP) + within_tile
        tl.store(mine + split * stride, acc)
        if GATED:
            tl.store(mine + split * stride + OUTS * MP, up_acc)
        tl.debug_barrier()
        last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.store(counters + tile, 0)
            acc = tl.zeros([OUTS, MP], tl.float32)
            up_acc = tl.zeros([OUTS, MP], tl.float32)
            for other in tl.static_range(SPLITS):
                acc += tl.load(mine + other * stride, cache_modifier=".cg")
                if GATED:
                    up_acc += tl.load(mine + other * stride + OUTS * MP, cache_modifier=".cg")
    if last:
        if SCALED:
            acc *= tl.load(scale + within)[:, None]
            if GATED:
                up_acc *= tl.load(scale + N + within)[:, None]
        if GATED:
            acc = acc * tl.sigmoid(acc) * up_acc
        if BIAS:
            acc += tl.load(bias + within).to(tl.float32)[:, None]
        mask = (outs < N)[:, None] & (rows < m)[None, :]
        if RESIDUAL:
            held = residual + rows[None, :].to(tl.int64) * residual_stride + outs[:, None]
            acc += tl.load(held, mask=mask, other=0.0).to(tl.float32)
        if out.dtype.element_ty == tl.float16:
            # A gate's products may be beyond float16: large, and not infinite.
            acc = tl.minimum(tl.maximum(acc, -65504.0), 65504.0)
        place = out + rows[None, :].to(tl.int64) * out_stride + outs[:, None]
        tl.store(place, acc.to(out.dtype.element_ty), mask=mask)


def padded_rows(rows: int, *, is_scaled: bool) -> int:
    """Rows of a tile: a power of two. Fewer than 32 are slower with weights that are widened on their way."""
    return max(32 if is_scaled else 16, 1 << (rows - 1).bit_length())


def launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor | None,
    residual: torch.Tensor | None,
    bias: torch.Tensor | None,
    scratch: tuple[torch.Tensor, torch.Tensor],
    *,
    gated: bool,
    plan: tuple[int, int, int, int, int],
    options: dict[str, object],
) -> None:
    """Launch once. plan: (outputs of a program, chunk, splits, warps, stages)."""
    outs, chunk, splits, warps, stages = plan
    rows, num_inputs = x.shape
    num_outputs = out.shape[1]
    held = x if residual is None else residual
    chunks = triton.cdiv(num_inputs, chunk)
    _skinny_kernel[(splits, triton.cdiv(num_outputs, outs))](
        x, x.stride(0), weight, weight.stride(0), x if scale is None else scale, held, held.stride(0),
        x if bias is None else bias, out, out.stride(0), *scratch, rows, num_outputs, num_inputs,
        triton.cdiv(chunks, splits), MP=padded_rows(rows, is_scaled=scale is not None), OUTS=outs, CHUNK=chunk,
        SPLITS=splits, RESIDUAL=residual is not None, BIAS=bias is not None, GATED=gated, SCALED=scale is not None,
        EVEN=num_inputs % chunk == 0, STAGES=stages, num_warps=warps, num_stages=stages, **options,
    )  # fmt: skip
