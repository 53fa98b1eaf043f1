"""Which kernels run on a device, by the name of an attention backend; and a count of what is compiled while serving."""

from __future__ import annotations

from typing import Any

from quire_worker.attention.device import AttentionNeeds, create_device_attention, triton_refusal
from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.cuda.plain import PlainKernels


def choose_kernels(attention: str, needs: AttentionNeeds) -> KernelSet:
    """attention: auto, triton, torch or a plug-in's name. ValueError: a backend that is not there, or why it can't do
    what the model needs on this device."""
    if attention == "torch" or (attention == "auto" and needs.device.type == "cpu"):
        return PlainKernels()
    if attention in ("auto", "triton"):
        reason = triton_refusal(needs)
        if reason:
            raise ValueError(f"attention backend 'triton' can't be used: {reason}")
        return _triton("triton").TritonKernels()  # type: ignore[no-any-return]
    backend = create_device_attention(attention, needs)
    _triton(attention)
    from quire_worker.cuda.plugged_kernels import PluggedKernels

    return PluggedKernels(backend)


def _triton(attention: str) -> Any:
    try:
        from quire_worker.cuda import triton_kernels
    except ImportError as error:
        raise ValueError(
            f"attention backend {attention!r} needs triton, which can't be imported: {error}"
        ) from error
    return triton_kernels


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
