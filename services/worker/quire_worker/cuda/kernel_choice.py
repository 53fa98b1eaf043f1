"""Which kernels run on a device, by the name of an attention backend; and a count of what is compiled while serving."""

from __future__ import annotations

from typing import Any

import torch

from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.cuda.plain import PlainKernels


def choose_kernels(attention: str, device: torch.device) -> KernelSet:
    """attention: auto, triton or torch. ValueError: a backend that is not there or can't run on the device."""
    if attention not in ("auto", "triton", "torch"):
        raise ValueError(f"attention backend on {device} must be auto, triton or torch, got {attention!r}")
    if attention == "torch" or (attention == "auto" and device.type == "cpu"):
        return PlainKernels()
    if device.type != "cuda":
        raise ValueError(f"attention backend 'triton' can't run on {device}")
    try:
        from quire_worker.cuda.triton_kernels import TritonKernels
    except ImportError as error:
        raise ValueError(
            f"attention backend 'triton' needs triton, which can't be imported: {error}"
        ) from error
    return TritonKernels()


class CompileCounter:
    """How many kernels Triton has compiled since `start`; at serving time it should stay 0."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def start(self) -> None:
        """Count from now on. Does nothing where there is no Triton."""
        try:
            from triton import knobs
        except ImportError:
            return
        knobs.runtime.jit_post_compile_hook = self._note

    def _note(self, *_: Any, **details: Any) -> None:
        self.count += 1
        function = details.get("fn")
        self.names.append(str(getattr(function, "name", function)))
