"""gumbel_argmax: one draw per row, the same tokens on every backend but where two are equal to the last bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.gumbel_argmax.reference import gumbel_argmax_reference


def gumbel_argmax(
    logits: torch.Tensor, seeds: Sequence[int], sequence_indices: Sequence[int], positions: Sequence[int]
) -> torch.Tensor:
    """Draw a token id from softmax(logits[row]) for each row of float32 [rows, vocabulary] -> int32 [rows].

    The draw depends on the row's (seed, sequence index, position) alone. seeds: 0 .. 2^64 - 1.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits must be a float32 matrix, got {logits.dtype} {list(logits.shape)}")
    if not len(logits) == len(seeds) == len(sequence_indices) == len(positions):
        raise ValueError("every row needs a seed, a sequence index and a position")
    if not has_compiler():
        rows = zip(logits.cpu().numpy(), seeds, sequence_indices, positions, strict=True)
        return torch.tensor([gumbel_argmax_reference(*row) for row in rows], dtype=torch.int32)
    from quire_kernels.cpu.team import run_once
    from quire_kernels.gumbel_argmax import cpu

    out = torch.empty(len(logits), dtype=torch.int32)
    step = cpu.bind(
        logits.cpu().numpy().copy(), logits.shape[1], np.array(seeds, dtype=np.uint64).view(np.int64),
        np.array(sequence_indices, dtype=np.int64), np.array(positions, dtype=np.int64), out.numpy(),
        np.array([len(logits)], dtype=np.int64),
    )  # fmt: skip
    run_once(step)
    return out
