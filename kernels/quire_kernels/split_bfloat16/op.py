"""split_bfloat16: the CPU kernel for float32 where it can be compiled, plain torch everywhere else."""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.split_bfloat16.reference import split_bfloat16_reference


def split_bfloat16(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] float32 on the CPU, k a multiple of 32 -> parts [3, rows, k] bfloat16, largest first, whose sum is x
    (of magnitudes above 2^-110), and the sums of every 32 values, [rows, k / 32] float32."""
    if x.dim() != 2 or x.dtype != torch.float32 or x.device.type != "cpu" or x.shape[1] % 32:
        raise ValueError(
            f"x must be a float32 matrix on the CPU with a multiple of 32 columns, got {x.dtype} {list(x.shape)} on "
            f"{x.device}"
        )
    if not has_compiler():
        return split_bfloat16_reference(x)
    from quire_kernels.cpu.team import run_once
    from quire_kernels.split_bfloat16 import cpu

    rows, num_inputs = x.shape
    out = cpu.room(rows, num_inputs)
    run_once(cpu.bind(x.contiguous().numpy(), num_inputs, np.array([rows], dtype=np.int64), out))
    parts, sums = cpu.joined(out, rows, num_inputs)
    return torch.from_numpy(parts).to(torch.bfloat16), torch.from_numpy(sums)
