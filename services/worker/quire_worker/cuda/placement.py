"""Puts weights on the device: the file's bits are sent as they are and converted there, part by part into one matrix.

Random weights (loading/dummy.py) are drawn where they will live.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows
from quire_worker.cuda.fp8_weight import Fp8Weight
from quire_worker.loading.dummy import STANDARD_DEVIATION, RandomRows
from quire_worker.loading.fp8 import Fp8Rows, RowsForFp8, rounded_to_fp8

_FILE_DTYPES: Final = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class DevicePlacement:
    """See layers.base.Placement."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype

    def fused(self, parts: Sequence[WeightRows]) -> torch.Tensor | Fp8Weight:
        """See Placement. In fp8 if every part is, or is to be."""
        if all(isinstance(part, Fp8Rows | RowsForFp8) for part in parts):
            return self._fused_fp8(parts)
        num_rows = sum(part.num_outputs for part in parts)
        place = torch.empty(num_rows, parts[0].num_inputs, device=self._device, dtype=self._dtype)
        start = 0
        for part in parts:
            self._fill(place[start : start + part.num_outputs], part)
            start += part.num_outputs
        return place

    def gated(self, gate: WeightRows, up: WeightRows) -> torch.Tensor | Fp8Weight:
        """See Placement: the gate's rows above the up projection's."""
        return self.fused([gate, up])

    def vector(self, values: NDArray[np.float32]) -> torch.Tensor:
        """See Placement."""
        return torch.from_numpy(np.array(values)).to(self._device, self._dtype)

    def _fused_fp8(self, parts: Sequence[WeightRows]) -> Fp8Weight:
        num_rows, num_inputs = sum(part.num_outputs for part in parts), parts[0].num_inputs
        if num_rows % 16 or num_inputs % 16:
            raise ValueError(
                f"fp8 needs sizes that are multiples of 16, got a matrix of {num_rows} x {num_inputs}"
            )
        place = torch.empty(num_rows, num_inputs, device=self._device, dtype=torch.float8_e4m3fn)
        scale = torch.empty(num_rows, device=self._device, dtype=torch.float32)
        start, fixed = 0, []
        for part in parts:
            end = start + part.num_outputs
            if isinstance(part, Fp8Rows):
                place[start:end].view(torch.uint8).copy_(torch.from_numpy(np.array(part.data)))
                scale[start:end] = torch.from_numpy(np.array(part.scale))
                fixed += [] if part.input_scale is None else [part.input_scale]
            else:
                assert isinstance(part, RowsForFp8)
                wide = torch.empty(part.num_outputs, num_inputs, device=self._device, dtype=self._dtype)
                self._fill(wide, part.rows)
                place[start:end], scale[start:end] = rounded_to_fp8(wide)
            start = end
        # Parts that are multiplied together see the same activations: the widest of their scales holds all.
        input_scale = torch.tensor([max(fixed)], device=self._device) if len(fixed) == len(parts) else None
        return Fp8Weight(place, scale, input_scale)

    def _fill(self, place: torch.Tensor, part: WeightRows) -> None:
        if isinstance(part, RandomRows) and self._device.type != "cpu":
            generator = torch.Generator(self._device).manual_seed(part.seed)
            place.normal_(std=STANDARD_DEVIATION, generator=generator)
        elif part.kind in _FILE_DTYPES and not isinstance(part, RandomRows):
            bits = np.ascontiguousarray(part.data)
            signed = bits.view(np.int16) if bits.dtype == np.uint16 else bits
            place.copy_(torch.from_numpy(signed).to(self._device).view(_FILE_DTYPES[part.kind]))
        else:
            place.copy_(torch.from_numpy(np.array(part.to_float32())))
