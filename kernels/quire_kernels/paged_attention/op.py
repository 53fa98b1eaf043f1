"""paged_attention: the CPU kernel for float32 where it can be compiled, plain torch everywhere else.

A kernel for GPUs takes its place beside cpu.py as kernel.py and is picked here by device.
"""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.paged_attention.reference import paged_attention_reference


def paged_attention(
    queries: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention of ragged query rows over keys and values in blocks -> [T, H, D].

    queries: [T, H, D], rotated; sequence s has rows query_start_loc[s] .. query_start_loc[s + 1], which are the last
    of its seq_lens[s] tokens. pool: [num_blocks, 2, G, B, D], keys of a block and head lying as [D, B], values as
    [B, D]; it holds these tokens' own keys and values already. query_start_loc [S + 1], seq_lens [S] and
    block_tables [S, blocks] are int32. window: a token sees this many tokens, itself included; 0 is all.
    """
    if queries.dim() != 3 or pool.dim() != 5 or queries.shape[2] != pool.shape[4]:
        raise ValueError(f"queries {list(queries.shape)} and pool {list(pool.shape)} do not fit each other")
    if any(tensor.dtype != torch.int32 for tensor in (query_start_loc, seq_lens, block_tables)):
        raise ValueError("query_start_loc, seq_lens and block_tables must be int32")
    if len(query_start_loc) != len(seq_lens) + 1 or len(block_tables) != len(seq_lens):
        raise ValueError(
            f"{len(seq_lens)} lengths with {len(query_start_loc)} starts and {len(block_tables)} block tables"
        )
    if queries.device.type != "cpu" or queries.dtype != torch.float32 or not has_compiler():
        return paged_attention_reference(
            queries, pool, query_start_loc, seq_lens, block_tables, scale, window
        )
    from quire_kernels.cpu.team import available_cores, run_once
    from quire_kernels.paged_attention import cpu

    out = torch.empty_like(queries)
    group = queries.shape[1] // pool.shape[2]
    step = cpu.bind(
        queries.flatten(1).contiguous().numpy(), out.flatten(1).numpy(), pool.numpy(),
        query_start_loc.numpy(), seq_lens.numpy(), np.arange(len(seq_lens), dtype=np.int32),
        block_tables.contiguous().numpy(), np.array([len(seq_lens)], dtype=np.int64),
        cpu.scratch(available_cores(), group, pool.shape[4]), num_heads=queries.shape[1], scale=scale, window=window,
    )  # fmt: skip
    run_once(step)
    return out
