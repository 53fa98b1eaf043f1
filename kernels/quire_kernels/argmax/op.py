"""argmax: the CPU kernel for float32 where it can be compiled, plain torch everywhere else."""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.argmax.reference import argmax_reference
from quire_kernels.cpu.environment import has_compiler


def argmax(x: torch.Tensor) -> torch.Tensor:
    """x [rows, size], size at least 1 -> int32 [rows]: the first index of each row's largest value."""
    if x.dim() != 2 or x.shape[1] < 1:
        raise ValueError(f"x must be a matrix with at least one column, got {list(x.shape)}")
    if x.device.type != "cpu" or x.dtype != torch.float32 or not has_compiler():
        return argmax_reference(x)
    from quire_kernels.argmax import cpu
    from quire_kernels.cpu.team import run_once

    out = torch.empty(len(x), dtype=torch.int32)
    run_once(cpu.bind(x.contiguous().numpy(), x.shape[1], out.numpy(), np.array([len(x)], dtype=np.int64)))
    return out
