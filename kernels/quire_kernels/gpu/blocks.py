"""Seeded pools for cases: sequences' keys and values in shuffled blocks, NaN wherever no token lies."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def filled_pool(
    cached: Sequence[int],
    lengths: Sequence[int],
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A pool [num_blocks, 2, G, B, D] with random keys and values of the first cached[i] tokens of sequence i, and
    block tables [sequences, blocks] with room for lengths[i]; entries beyond are far outside the pool."""
    device = generator.device
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = 1 + sum(counts)
    order = torch.randperm(num_blocks - 1, generator=generator, device=device, dtype=torch.int32) + 1
    tables = torch.full((len(counts), max([1, *counts])), 1 << 29, dtype=torch.int32, device=device)
    pool = torch.full(
        (num_blocks, 2, kv_heads, block_size, head_dim), float("nan"), dtype=dtype, device=device
    )
    start = 0
    for row, (count, tokens) in enumerate(zip(counts, cached, strict=True)):
        tables[row, :count] = order[start : start + count]
        start += count
        whole, rest = divmod(tokens, block_size)
        shape = (whole + 1, 2, kv_heads, block_size, head_dim)
        content = torch.randn(shape, generator=generator, device=device).to(dtype)
        pool[tables[row, :whole].long()] = content[:whole]
        if rest:
            pool[int(tables[row, whole]), :, :, :rest] = content[whole, :, :, :rest]
    return pool, tables
