"""embedding: rows of a packed table. The CPU kernel where it can be compiled, plain torch otherwise."""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.embedding.reference import embedding_reference
from quire_kernels.linear.rows import WeightRows


def embedding(table: WeightRows, token_ids: torch.Tensor) -> torch.Tensor:
    """token_ids int32 [rows], each below table.num_outputs -> float32 [rows, k]."""
    if token_ids.dtype != torch.int32 or token_ids.dim() != 1:
        raise ValueError(f"token_ids must be an int32 vector, got {token_ids.dtype} {list(token_ids.shape)}")
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < table.num_outputs:
        raise ValueError(f"a token id is outside 0..{table.num_outputs - 1}")
    if not has_compiler():
        return embedding_reference(table, token_ids)
    from quire_kernels.cpu.team import run_once
    from quire_kernels.embedding import cpu
    from quire_kernels.linear.packing import pack

    out = torch.empty(len(token_ids), table.num_inputs)
    rows = np.array([len(token_ids)], dtype=np.int64)
    run_once(cpu.bind(pack([table]), token_ids.numpy(), out.numpy(), rows))
    return out
