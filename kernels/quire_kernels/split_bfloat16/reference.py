"""The split in plain torch."""

from __future__ import annotations

import torch

_BLOCK = 32


def split_bfloat16_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, k] float32 -> parts [3, rows, k] bfloat16, largest first, and block sums [rows, k / 32] float32."""
    parts, rest = [], x
    for _ in range(3):
        # The upper half of a float32 is the bfloat16 next to it towards zero.
        part = (rest.contiguous().view(torch.int32) & -65536).view(torch.float32)
        parts.append(part.to(torch.bfloat16))
        rest = rest - part
    return torch.stack(parts), x.unflatten(1, (x.shape[1] // _BLOCK, _BLOCK)).sum(-1)
