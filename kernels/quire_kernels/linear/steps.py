"""Chooses the kernel of each linear product of a program, and owns the room that they share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.amx import has_amx
from quire_kernels.cpu.team import BoundTask
from quire_kernels.linear import cpu
from quire_kernels.linear.packing import PackedLinear
from quire_kernels.split_bfloat16 import cpu as split_bfloat16

if has_amx():
    from quire_kernels.linear import amx


class LinearSteps:
    """Binds linear products. Quantised weights go to the matrix tiles where there are any, all others to vectors: a
    weight's kernel never depends on the number of rows, or a row's bits would.

    max_rows, max_inputs: of any product to be bound. use_amx: None is whether this process can.
    """

    def __init__(
        self, max_rows: int, max_inputs: int, num_threads: int, *, use_amx: bool | None = None
    ) -> None:
        if use_amx and not has_amx():
            raise ValueError("this process may not use matrix tiles")
        self._room = cpu.scratch(num_threads, max_inputs)
        self._split: split_bfloat16.SplitRows | None = None
        if use_amx is not False and has_amx():
            self._split = split_bfloat16.room(max_rows, max_inputs)
            self._amx_room = amx.scratch(num_threads, max_rows, max_inputs)

    def bind(
        self,
        weights: PackedLinear,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        num_rows: NDArray[np.int64],
        *,
        epilogue: int = cpu.STORE,
        bias: NDArray[np.float32] | None = None,
    ) -> list[BoundTask]:
        """The program steps of one product; arguments as of `linear.cpu.bind`."""
        split = self._split
        if split is None or weights.kind not in amx.AMX_KINDS:
            return [cpu.bind(weights, x, out, num_rows, self._room, epilogue=epilogue, bias=bias)]
        return [
            split_bfloat16.bind(x, weights.num_inputs, num_rows, split),
            amx.bind(weights, split, out, num_rows, self._amx_room, epilogue=epilogue, bias=bias),
        ]
