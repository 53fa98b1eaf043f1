"""Embedding lookup in plain torch."""

from __future__ import annotations

import torch

from quire_kernels.linear.rows import WeightRows


def embedding_reference(table: WeightRows, token_ids: torch.Tensor) -> torch.Tensor:
    """token_ids [rows] -> the table's rows in float32, [rows, k]."""
    return torch.from_numpy(table.to_float32())[token_ids.long()]
