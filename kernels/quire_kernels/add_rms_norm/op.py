"""add_rms_norm: the residual stream's addition and the norm of it."""

from __future__ import annotations

import torch

from quire_kernels.add_rms_norm import kernel
from quire_kernels.gpu.launch import check_device, pdl_options


def add_rms_norm(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """residual += x (unless x is None); out = residual / sqrt(mean(residual^2) + eps) * weight.

    x, residual, out: [T, size], contiguous rows; weight: [size]. Sums are float32. out may be x.
    """
    if residual.dim() != 2 or weight.shape != residual.shape[1:] or out.shape != residual.shape:
        raise ValueError(
            f"residual {list(residual.shape)}, out {list(out.shape)} and weight {list(weight.shape)} do not fit"
        )
    if x is not None and x.shape != residual.shape:
        raise ValueError(f"x {list(x.shape)} and residual {list(residual.shape)} differ in shape")
    if any(tensor is not None and tensor.stride(1) != 1 for tensor in (x, residual, out)):
        raise ValueError("rows of x, residual and out must be contiguous")
    check_device("add_rms_norm", x, residual, weight, out)
    if len(residual):
        kernel.launch(x, residual, weight, eps, out, pdl_options(pdl))
