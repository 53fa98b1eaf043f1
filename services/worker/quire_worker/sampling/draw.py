"""Draws one token per row by Gumbel-max: on the CPU kernels where they are there, else in plain numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quire_kernels.gumbel_argmax.reference import gumbel_argmax_reference

# draw(logits [rows, vocabulary], overwritten; seeds; sequence indices; positions) -> token ids
Draw = Callable[
    [NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]], NDArray[np.int32]
]


def draw_in_numpy(
    logits: NDArray[np.float32],
    seeds: NDArray[np.uint64],
    sequence_indices: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> NDArray[np.int32]:
    """See Draw."""
    rows = zip(logits, seeds.tolist(), sequence_indices.tolist(), positions.tolist(), strict=True)
    return np.array([gumbel_argmax_reference(*row) for row in rows], dtype=np.int32)


class KernelDraw:
    """Draws with the CPU kernel, which gives the same tokens many times faster."""

    def __init__(self, max_rows: int, vocab_size: int, num_threads: int) -> None:
        from quire_kernels.cpu.memory import zeros
        from quire_kernels.cpu.team import Program
        from quire_kernels.gumbel_argmax import cpu

        self._logits = zeros((max_rows, vocab_size), np.float32)
        self._seeds, self._sequences, self._positions = (zeros(max_rows, np.int64) for _ in range(3))
        self._out = zeros(max_rows, np.int32)
        self._rows = zeros(1, np.int64)
        step = cpu.bind(
            self._logits, vocab_size, self._seeds, self._sequences, self._positions, self._out, self._rows
        )
        self._program = Program([step], num_threads)

    def __call__(
        self,
        logits: NDArray[np.float32],
        seeds: NDArray[np.uint64],
        sequence_indices: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> NDArray[np.int32]:
        """See Draw."""
        count = len(logits)
        self._logits[:count] = logits
        self._seeds[:count] = seeds.view(np.int64)
        self._sequences[:count] = sequence_indices
        self._positions[:count] = positions
        self._rows[0] = count
        self._program.run()
        return self._out[:count].copy()
