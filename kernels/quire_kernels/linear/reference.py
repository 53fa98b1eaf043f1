"""The linear operation in plain torch, on weights expanded to float32."""

from __future__ import annotations

import torch

from quire_kernels.linear.rows import WeightRows


def linear_reference(x: torch.Tensor, weight: WeightRows, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, k] float32 -> x W^T + bias, [rows, n]."""
    y = x @ torch.from_numpy(weight.to_float32()).T
    return y if bias is None else y + bias


def gated_linear_reference(x: torch.Tensor, gate: WeightRows, up: WeightRows) -> torch.Tensor:
    """x [rows, k] float32 -> silu(x G^T) * (x U^T), [rows, n]."""
    return torch.nn.functional.silu(linear_reference(x, gate)) * linear_reference(x, up)
