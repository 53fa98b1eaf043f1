"""Linear layers over fp8 weights, by the number of rows.

Few rows are bound by reading the weight: it is read in fp8 and widened on its way to the product, and activations stay
in 16 bits, which costs nothing and is more exact. Many rows are bound by the product: activations are rounded to fp8 by
the kernel that makes them. Where there are no such kernels, or computing is in float32, the weight is expanded: right,
and slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from quire_worker.cuda.fp8_weight import Fp8Activations, Fp8Weight
from quire_worker.cuda.kernel_set import KernelSet
from quire_worker.models.decoder import LayerWeights

if TYPE_CHECKING:
    from quire_worker.cuda.fp8_kernels import Fp8Kernels
    from quire_worker.cuda.operations import Stream


class Fp8Operations:
    """See layers.base.Operations for what each must do."""

    def __init__(
        self, kernels: KernelSet, workspace: Any, eps: float, layers: Sequence[LayerWeights]
    ) -> None:
        self._kernels = kernels
        self._workspace = workspace
        self._eps = eps
        self._fp8 = _fp8_kernels(kernels)
        # What a gated product goes on to: its rows are rounded as that one wants them.
        self._after = {id(layer.gate_up): layer.down for layer in layers}

    def linear(
        self, x: Stream, norm: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """norm(x) W^T + bias."""
        source, fp8 = x.residual, self._fp8
        if fp8 is None or not self._is_narrow(source):
            return self._many(x, norm, weight, bias)
        out = source.new_empty(len(source), len(weight))
        if len(source) <= self._kernels.max_small_rows:
            fp8.small(source, weight, out, norm=norm, eps=self._eps, bias=bias)
        else:
            fp8.skinny(self._normed(x, norm), weight, out, self._workspace, bias=bias)
        return out

    def gated(self, x: Stream, norm: torch.Tensor, weight: Fp8Weight) -> torch.Tensor | Fp8Activations:
        """silu(gate) * up of norm(x) W^T, ready for the product after it."""
        source, fp8 = x.residual, self._fp8
        if fp8 is None or not self._is_narrow(source):
            return self._many_gated(x, norm, weight)
        out = torch.empty(
            len(source), len(weight) // 2, device=source.device, dtype=self.narrow_dtype(source.dtype)
        )
        if len(source) <= self._kernels.max_small_rows:
            fp8.small(source, weight, out, norm=norm, eps=self._eps, gated=True)
        else:
            fp8.skinny(self._normed(x, norm), weight, out, self._workspace, gated=True)
        return out

    def add(
        self,
        target: torch.Tensor,
        x: torch.Tensor | Fp8Activations,
        weight: Fp8Weight,
        bias: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """target += x W^T + bias, or what is still to be added."""
        fp8 = self._fp8
        if isinstance(x, Fp8Activations):
            assert fp8 is not None
            return fp8.product(x, weight, bias)
        if fp8 is None or not self._is_narrow(x):
            return self._product(x, weight, bias)
        # The last layer's attention may have computed more rows than are kept: these come in the wide type.
        x = x.to(self.narrow_dtype(x.dtype))
        if len(x) <= self._kernels.max_small_rows:
            fp8.small(x, weight, target, residual=target, bias=bias)
        else:
            fp8.skinny(x, weight, target, self._workspace, residual=target, bias=bias)
        return None

    def narrow_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What few rows of activations are best in: fp8 becomes float16 in one instruction, and bfloat16 in several."""
        return torch.float16 if dtype == torch.bfloat16 and self._fp8 is not None else dtype

    def is_narrow(self, num_rows: int) -> bool:
        """Whether so many rows are few."""
        return num_rows <= max(self._kernels.max_small_rows, self._kernels.max_skinny_rows)

    def _is_narrow(self, x: torch.Tensor) -> bool:
        return self.is_narrow(len(x))

    def _rounds(self, dtype: torch.dtype) -> bool:
        return self._fp8 is not None and dtype != torch.float32

    def _many(
        self, x: Stream, norm: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self._fp8 is None or not self._rounds(x.residual.dtype):
            return linear(self._normed(x, norm), weight.wide(x.residual.dtype), bias)
        rows = self._fp8.normed(x.delta, x.residual, norm, self._eps, weight.input_scale)
        x.delta = None
        return self._fp8.product(rows, weight, bias)

    def _many_gated(self, x: Stream, norm: torch.Tensor, weight: Fp8Weight) -> torch.Tensor | Fp8Activations:
        gate_up, after = self._many(x, norm, weight, None), self._after[id(weight)]
        if self._fp8 is not None and self._rounds(gate_up.dtype) and isinstance(after, Fp8Weight):
            return self._fp8.gate(gate_up, after.input_scale)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self._kernels.silu_mul(gate_up, out)
        return out

    def _product(self, x: torch.Tensor, weight: Fp8Weight, bias: torch.Tensor | None) -> torch.Tensor:
        if self._fp8 is None or not self._rounds(x.dtype):
            return linear(x, weight.wide(x.dtype), bias)
        return self._fp8.product(self._fp8.rows(x, weight.input_scale), weight, bias)

    def _normed(self, x: Stream, norm: torch.Tensor) -> torch.Tensor:
        source = x.residual
        dtype = self.narrow_dtype(source.dtype) if self._is_narrow(source) else source.dtype
        out = torch.empty(source.shape, device=source.device, dtype=dtype)
        self._kernels.add_rms_norm(x.delta, source, norm, self._eps, out)
        x.delta = None
        return out


def _fp8_kernels(kernels: KernelSet) -> Fp8Kernels | None:
    if not kernels.is_capturable:
        return None
    from quire_worker.cuda.fp8_kernels import Fp8Kernels

    return Fp8Kernels(kernels)
