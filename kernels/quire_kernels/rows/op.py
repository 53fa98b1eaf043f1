"""gather_rows, embed: rows of a matrix by index, into a buffer."""

from __future__ import annotations

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.rows import kernel


def gather_rows(table: torch.Tensor, indices: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """out [R, size] = table [N, size] at int32 indices [R], which are not checked: they are on the device."""
    if (
        indices.dtype != torch.int32
        or out.shape != (len(indices), table.shape[1])
        or out.dtype != table.dtype
    ):
        raise ValueError(
            f"out {out.dtype} {list(out.shape)} must hold {len(indices)} rows of {table.dtype} {list(table.shape)},"
            f" by int32 and not {indices.dtype}"
        )
    if table.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("rows of table and out must be contiguous")
    check_device("gather_rows", table, indices, out)
    if len(indices):
        kernel.launch(table, indices, out, pdl_options(pdl))


def embed(table: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """out [T, size]: the embeddings of int32 token ids [T]."""
    gather_rows(table, token_ids, out, pdl=pdl)
