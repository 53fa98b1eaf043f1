"""fp8_rows in plain torch and float64."""

from __future__ import annotations

import torch


def quantize_rows_reference(
    x: torch.Tensor, dtype: torch.dtype, *, static_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows in dtype, scales): see op.quantize_rows."""
    wide = x.double()
    scale = (
        wide.abs().amax(1).clamp_min(1e-10) / 448.0
        if static_scale is None
        else static_scale.double().expand(len(x))
    )
    # By way of float32, which the kernel computes in.
    return (wide / scale[:, None]).clamp(-448.0, 448.0).float().to(dtype), scale


def add_rms_norm_fp8_reference(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    *,
    static_scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See op.add_rms_norm_fp8; the residual changes in place."""
    if x is not None:
        residual += x
    wide = residual.double()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.double()
    return quantize_rows_reference(normed, dtype, static_scale=static_scale)


def silu_mul_fp8_reference(
    gate_up: torch.Tensor, dtype: torch.dtype, *, static_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See op.silu_mul_fp8."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return quantize_rows_reference(torch.nn.functional.silu(gate) * up, dtype, static_scale=static_scale)
