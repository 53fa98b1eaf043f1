"""gemv in plain torch and float64."""

from __future__ import annotations

import torch


def gemv_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """See op.gemv. -> [rows, N] in float64."""
    wide = x.double()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * norm.double()
    result = wide @ weight.double().T
    if scale is not None:
        result = result * scale.double()
    if gated:
        gate, up = result.chunk(2, dim=-1)
        result = torch.nn.functional.silu(gate) * up
    if bias is not None:
        result = result + bias.double()
    return result if residual is None else result + residual.double()
