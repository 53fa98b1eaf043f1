"""rms_norm: the CPU kernel for float32 on the CPU where it can be compiled, plain torch everywhere else."""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.rms_norm.reference import rms_norm_reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [rows, size], weight [size] -> x / sqrt(mean(x^2) + eps) * weight, in x's dtype."""
    if x.dim() != 2 or weight.shape != x.shape[1:]:
        raise ValueError(
            f"x {list(x.shape)} must be a matrix with as many columns as weight {list(weight.shape)}"
        )
    if x.device.type != "cpu" or x.dtype != torch.float32 or not has_compiler():
        return rms_norm_reference(x, weight, eps)
    from quire_kernels.cpu.team import run_once
    from quire_kernels.rms_norm import cpu

    out = torch.empty_like(x)
    rows = np.array([len(x)], dtype=np.int64)
    run_once(cpu.bind(x.contiguous().numpy(), weight.contiguous().numpy(), eps, out.numpy(), rows))
    return out
