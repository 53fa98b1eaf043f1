"""Rows of activations for products of fp8 by fp8: each launch makes the rows, their scales, and rounds them."""

from __future__ import annotations

import torch

from quire_kernels.fp8_rows import kernel
from quire_kernels.gpu.launch import check_device, pdl_options

# The largest magnitude of e4m3.
FP8_MAX = 448.0


def quantize_rows(
    x: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    *,
    static_scale: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out [T, size] * scale [T] = x [T, size], rounded to out's type.

    scale: float32, written; each row's largest magnitude / 448, or static_scale (float32 [1]) for all. What
    static_scale puts beyond fp8's range is cut to it.
    """
    _check("quantize_rows", x, x.shape, out, scale, static_scale)
    if len(out):
        kernel.launch(kernel.ROWS, x, None, None, static_scale, out, scale, 0.0, pdl_options(pdl))


def add_rms_norm_fp8(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scale: torch.Tensor,
    *,
    static_scale: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """residual += x (unless x is None); out * scale = the residual's RMS norm times weight. See quantize_rows."""
    if x is not None and x.shape != residual.shape:
        raise ValueError(f"x {list(x.shape)} and residual {list(residual.shape)} differ in shape")
    if weight.shape != residual.shape[1:]:
        raise ValueError(f"weight {list(weight.shape)} does not fit rows of {list(residual.shape)}")
    _check("add_rms_norm_fp8", residual, residual.shape, out, scale, static_scale)
    if len(out):
        kernel.launch(kernel.NORM, x, residual, weight, static_scale, out, scale, eps, pdl_options(pdl))


def silu_mul_fp8(
    gate_up: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    *,
    static_scale: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out [T, I] * scale [T] = silu(gate) * up of gate_up [T, 2 I], gate first. See quantize_rows."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must have rows of even size, got {list(gate_up.shape)}")
    shape = torch.Size((len(gate_up), gate_up.shape[1] // 2))
    _check("silu_mul_fp8", gate_up, shape, out, scale, static_scale)
    if len(out):
        kernel.launch(kernel.GATE, gate_up, None, None, static_scale, out, scale, 0.0, pdl_options(pdl))


def _check(
    name: str,
    source: torch.Tensor,
    shape: torch.Size,
    out: torch.Tensor,
    scale: torch.Tensor,
    static_scale: torch.Tensor | None,
) -> None:
    if out.shape != shape or scale.shape != shape[:1]:
        raise ValueError(
            f"{name}: out {list(out.shape)} and scale {list(scale.shape)} must fit {list(shape)}"
        )
    if source.stride(1) != 1 or out.stride(1) != 1 or not scale.is_contiguous():
        raise ValueError(f"{name}: rows must be contiguous")
    if scale.dtype != torch.float32 or (static_scale is not None and static_scale.dtype != torch.float32):
        raise ValueError(f"{name}: scales must be float32")
    check_device(name, source, out, scale, static_scale)
