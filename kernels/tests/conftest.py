"""Kernels compile into the cache that services use; it must be named before numba is imported. Triton's kernels run in
its interpreter where there is no GPU: float32 and float16 only, because bfloat16 is silently wrong there."""

import os

import pytest
import torch

from quire_kernels.cpu.environment import prepare_process

prepare_process()
HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Largest ||out - reference|| / ||reference|| by type.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture(
    params=[
        pytest.param(("cpu", torch.float32), id="interpreter-float32"),
        pytest.param(("cuda", torch.float32), id="gpu-float32", marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.float16), id="gpu-float16", marks=pytest.mark.gpu),
        pytest.param(("cuda", torch.bfloat16), id="gpu-bfloat16", marks=pytest.mark.gpu),
    ]
)
def place(request):
    """(device, type) that a Triton kernel runs on and in."""
    if (request.param[0] == "cuda") != HAS_GPU:
        pytest.skip("Triton runs on the other device here")
    return request.param


@pytest.fixture
def assert_close():
    """assert_close(out, reference): within the tolerance of out's type, no NaN among them."""

    def check(out: torch.Tensor, reference: torch.Tensor) -> None:
        if out.numel() == 0:
            return
        error = (out.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-30)
        assert error <= TOLERANCES[out.dtype], f"relative error {error:.2e}"

    return check


@pytest.fixture
def half_place():
    """(device, float16): a cheap check of half precision on either device."""
    return ("cuda" if HAS_GPU else "cpu", torch.float16)
