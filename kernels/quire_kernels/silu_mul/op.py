"""silu_mul: the gate of a gated MLP."""

from __future__ import annotations

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.silu_mul import kernel


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """out [T, I] = silu(gate) * up of gate_up [T, 2 I], gate first. Computed in float32."""
    if gate_up.dim() != 2 or out.shape != (len(gate_up), gate_up.shape[1] // 2) or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up {list(gate_up.shape)} must be twice as wide as out {list(out.shape)}")
    if gate_up.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("rows of gate_up and out must be contiguous")
    check_device("silu_mul", gate_up, out)
    if len(out):
        kernel.launch(gate_up, out, pdl_options(pdl))
