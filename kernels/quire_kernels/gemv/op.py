"""gemv: a weight times one row, with what comes before and after it in the same launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_kernels.gemv import kernel
from quire_kernels.gpu.launch import check_device, pdl_options

# More rows than these are cheaper by tensor cores: see skinny_linear.
MAX_ROWS = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """outs: outputs of a program; chunk: inputs read at a time; warps."""

    outs: int
    chunk: int
    warps: int


def default_plan(num_outputs: int, num_inputs: int, gated: bool) -> Plan:
    """The fastest of those measured on one H200 for the projections of an 8B and a 0.6B decoder."""
    if num_inputs > 8192:
        return Plan(8, 512, 2)
    if num_outputs >= 65536:
        return Plan(2, 4096, 4) if num_inputs >= 4096 else Plan(4, 1024, 2)
    if gated:
        return Plan(4, 1024, 4) if num_inputs >= 4096 else Plan(4, 512, 2)
    if num_outputs > 4096:
        return Plan(2, 1024, 2)
    if num_outputs > 2 * num_inputs:
        return Plan(2, 256, 1)
    return Plan(4, 2048, 4) if num_inputs == 3072 else Plan(8, 1024, 4)


def scaled_plan(num_outputs: int, num_inputs: int, gated: bool) -> Plan:
    """As default_plan, for fp8 weights: the fastest in a whole layer of an 8B decoder, attention included."""
    if num_inputs > 8192:
        return Plan(2, 512, 2)
    if gated:
        return Plan(4, 2048, 4) if num_inputs >= 2048 else Plan(4, 512, 2)
    return Plan(8, 1024, 4) if num_outputs > num_inputs else Plan(4, 4096, 2)


def gemv(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    plan: Plan | None = None,
    pdl: bool = False,
) -> None:
    """out [1, N] = f(x [1, K]) W^T + bias + residual.

    weight: [N, K], contiguous along K. norm [K]: f is RMS norm with eps, times norm; else f is the identity. gated:
    weight is [2 N, K], gate above up, and the product becomes silu(gate) * up. residual [1, N] may be out itself. out
    may be of another floating type than x. scale [rows of weight], float32: what each row of an fp8 weight
    stands for. Products and sums are float32.
    """
    num_outputs, num_inputs = out.shape[-1], weight.shape[1]
    if (
        x.shape != (1, num_inputs)
        or out.dim() != 2
        or len(out) != 1
        or x.stride(1) != 1
        or out.stride(1) != 1
    ):
        raise ValueError(
            f"x {list(x.shape)} and out {list(out.shape)} must be one row each for {list(weight.shape)}"
        )
    if weight.shape[0] != num_outputs * (2 if gated else 1) or weight.stride(1) != 1:
        raise ValueError(f"weight {list(weight.shape)} does not give {num_outputs} outputs, gated {gated}")
    vectors = {"norm": (norm, num_inputs), "residual": (residual, num_outputs), "bias": (bias, num_outputs)}
    for name, (vector, size) in vectors.items():
        if vector is not None and (vector.numel() != size or not vector.is_contiguous()):
            raise ValueError(f"{name} must have {size} contiguous elements, got {list(vector.shape)}")
    if scale is not None and (scale.dtype != torch.float32 or scale.shape != weight.shape[:1]):
        raise ValueError(f"scale must be float32 [{len(weight)}], got {scale.dtype} {list(scale.shape)}")
    check_device("gemv", x, weight, out, scale, norm, residual, bias)
    plans = default_plan if scale is None else scaled_plan
    chosen = plan or plans(num_outputs, num_inputs, gated)
    kernel.launch(
        x, weight, out, scale, norm, residual, bias, eps=eps, gated=gated,
        plan=(chosen.outs, chosen.chunk, chosen.warps), options=pdl_options(pdl),
    )  # fmt: skip
