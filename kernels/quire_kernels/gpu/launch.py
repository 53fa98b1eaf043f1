"""How Triton kernels are launched: options that depend on where they run. Queries no device at import."""

from __future__ import annotations

import functools
import os
from typing import Any, Final

import torch

_OVERLAPPING: Final[dict[str, Any]] = {"PDL": True, "launch_pdl": True}
_ALONE: Final[dict[str, Any]] = {"PDL": False}


@functools.cache
def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on tensors in host memory."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def pdl_options(pdl: bool) -> dict[str, Any]:
    """Keyword arguments of a launch. pdl: the kernel may start before the one ahead of it has ended; it then waits
    by itself before it reads what that one wrote."""
    return _OVERLAPPING if pdl and not interpreted() else _ALONE


@functools.cache
def num_multiprocessors(device_index: int) -> int:
    """Multiprocessors of a CUDA device."""
    return int(torch.cuda.get_device_properties(device_index).multi_processor_count)


def check_device(name: str, *tensors: torch.Tensor | None) -> None:
    """ValueError unless every tensor is on the device that kernels run on."""
    is_cuda = not interpreted()
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda != is_cuda:
            raise ValueError(
                f"{name}: tensors must be on {'cuda' if is_cuda else 'cpu'}, got one on {tensor.device}"
            )
