"""Launches without Triton's look-up: whatever kind of arguments comes, the kernel that Triton would have taken runs."""

import pytest
import torch

from quire_kernels.gpu.fast_launch import FastKernel
from quire_kernels.rows.kernel import _rows_kernel
from quire_kernels.rows.op import gather_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_every_kind_of_arguments_gets_its_own_kernel():
    """Types, misaligned addresses, and numbers that are 1 or no multiples of 16, each launched twice."""
    assert isinstance(_rows_kernel, FastKernel)
    indices = torch.tensor([3, 0, 2, 1, 3], dtype=torch.int32, device="cuda")
    for dtype in (torch.float32, torch.bfloat16):
        for width in (1, 33, 64):
            for start in (0, 1):
                table = torch.randn(5, width, device="cuda").to(dtype)[start:]
                out = torch.full((5 - start, width), float("nan"), dtype=dtype, device="cuda")
                for _ in range(2):
                    gather_rows(table, indices[start:], out)
                    assert torch.equal(out, table[indices[start:].long()])
                    out.fill_(float("nan"))
