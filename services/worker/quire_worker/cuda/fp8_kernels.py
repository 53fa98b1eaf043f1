"""What linear layers over fp8 weights are made of, by quire_kernels' operations and the library's product.

All write into tensors they are given, but `product`. `kernels` says when launches may overlap.
"""

from __future__ import annotations

from typing import Any

import torch

from quire_kernels.fp8_rows.op import add_rms_norm_fp8, quantize_rows, silu_mul_fp8
from quire_kernels.gemv.op import gemv
from quire_kernels.skinny_linear.op import skinny_linear
from quire_worker.cuda.fp8_weight import Fp8Activations, Fp8Weight
from quire_worker.cuda.kernel_set import KernelSet


class Fp8Kernels:
    """Stateless but for the kernels whose `overlap` it follows."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels

    def small(
        self,
        x: torch.Tensor,
        weight: Fp8Weight,
        out: torch.Tensor,
        *,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """One row; see KernelSet.small_linear."""
        gemv(
            x, weight.data, out, scale=weight.scale, norm=norm, eps=eps, residual=residual, bias=bias, gated=gated,
            pdl=self._kernels.overlap,
        )  # fmt: skip

    def skinny(
        self,
        x: torch.Tensor,
        weight: Fp8Weight,
        out: torch.Tensor,
        workspace: Any,
        *,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        gated: bool = False,
    ) -> None:
        """Few rows; see KernelSet.skinny_linear."""
        skinny_linear(
            x, weight.data, out, workspace.skinny, scale=weight.scale, residual=residual, bias=bias, gated=gated,
            pdl=self._kernels.overlap,
        )  # fmt: skip

    def normed(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
        static_scale: torch.Tensor | None,
    ) -> Fp8Activations:
        """residual += x; its norm in fp8."""
        out = _empty(residual, residual.shape[1])
        add_rms_norm_fp8(
            x, residual, norm, eps, out.data, out.scale, static_scale=static_scale, pdl=self._kernels.overlap
        )
        return out

    def gate(self, gate_up: torch.Tensor, static_scale: torch.Tensor | None) -> Fp8Activations:
        """silu(gate) * up in fp8."""
        out = _empty(gate_up, gate_up.shape[1] // 2)
        silu_mul_fp8(gate_up, out.data, out.scale, static_scale=static_scale, pdl=self._kernels.overlap)
        return out

    def rows(self, x: torch.Tensor, static_scale: torch.Tensor | None) -> Fp8Activations:
        """x in fp8."""
        out = _empty(x, x.shape[1])
        quantize_rows(x, out.data, out.scale, static_scale=static_scale, pdl=self._kernels.overlap)
        return out

    def product(self, x: Fp8Activations, weight: Fp8Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x W^T + bias by the tensor cores' fp8 product, in x's former type."""
        # Scales of rows give bfloat16 alone.
        out: torch.Tensor = torch._scaled_mm(
            x.data, weight.data.t(), scale_a=x.scale[:, None], scale_b=weight.scale[None], out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )  # fmt: skip
        out = out.to(x.dtype)
        return out if bias is None else out.add_(bias)


def _empty(like: torch.Tensor, size: int) -> Fp8Activations:
    data = torch.empty(len(like), size, device=like.device, dtype=torch.float8_e4m3fn)
    return Fp8Activations(data, torch.empty(len(like), device=like.device, dtype=torch.float32), like.dtype)
