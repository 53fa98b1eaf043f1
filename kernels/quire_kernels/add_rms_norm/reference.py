"""add_rms_norm in plain torch."""

from __future__ import annotations

import torch


def add_rms_norm_reference(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See op.add_rms_norm. -> the new residual in its type, and the norm of it in float64."""
    if x is not None:
        residual = (residual.float() + x.float()).to(residual.dtype)
    wide = residual.double()
    return residual, wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()
