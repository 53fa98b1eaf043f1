"""prefill_attention: ragged runs of new tokens, causal, over whatever lies in their blocks before them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.prefill_attention import kernel, kernel_own_keys


@dataclass(frozen=True, slots=True)
class Plan:
    """rows: (token, head) pairs of a tile; tile: keys read at a time; warps; stages: tiles in flight."""

    rows: int
    tile: int
    warps: int
    stages: int


def default_plan(head_dim: int, element_bytes: int) -> Plan:
    """What fits a multiprocessor's shared memory; measured on one H200 for heads of 128."""
    if head_dim * element_bytes > 256:
        return Plan(64, 32, 4, 2)
    return Plan(64, 64, 4, 3) if head_dim <= 128 else Plan(128, 64, 8, 2)


def own_keys_plan(head_dim: int, element_bytes: int) -> Plan:
    """As default_plan, where new keys come from qkv."""
    if head_dim * element_bytes > 256 or element_bytes > 2:
        return Plan(64, 32, 4, 2)
    return Plan(128, 64, 8, 3)


def tokens_of_tile(num_heads: int, kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """How many tokens of one run a listed tile has."""
    return own_keys_plan(head_dim, element_bytes).rows // (num_heads // kv_heads)


def prefill_attention(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    *,
    num_heads: int,
    max_query_len: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    kv_scale: tuple[float, float] = (1.0, 1.0),
    has_own_keys: bool = False,
    tiles: torch.Tensor | None = None,
    plan: Plan | None = None,
    pdl: bool = False,
) -> None:
    """Attention of sequence s's rows query_start_loc[s] .. query_start_loc[s + 1] of qkv, into the same rows of out.

    qkv: [T, (H + 2 G) * D] with rotated queries; pool: [num_blocks, 2, G, B, D], keys and values both [B, D] per block
    and head, the new tokens' own among them; query_start_loc int32 [S + 1]; seq_lens int32 [S], the new tokens
    included; table_rows int32 [S]: rows of block_tables int32 [rows, blocks]; out: [T, H * D]; max_query_len: no run is
    longer. window, soft_cap, sinks, kv_scale: as in decode_attention. has_own_keys: qkv has the new tokens'
    keys rotated, too, as rope_kv_write_gpu leaves them, and they may be read there. tiles: int32 [1 + most],
    how many entries count, then sequence << 16 | tile of tokens_of_tile tokens, of the sequences to be computed; the
    launch is then the same whatever is in the list. Rows of no sequence are not written.
    """
    _check(qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, num_heads)
    check_device(
        "prefill_attention", qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, sinks
    )
    if len(seq_lens) == 0 or max_query_len == 0:
        return
    if has_own_keys and kernel_own_keys.can_run(qkv, pool, window):
        chosen = plan or own_keys_plan(pool.shape[4], qkv.element_size())
        kernel_own_keys.launch(
            qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, sinks, tiles, num_heads=num_heads,
            max_query_len=max_query_len, scale=scale, soft_cap=soft_cap,
            plan=(chosen.rows, chosen.tile, chosen.warps, chosen.stages), options=pdl_options(pdl),
        )  # fmt: skip
        return
    if tiles is not None:
        raise ValueError(
            "tiles can't be listed for a window, heads of other than a power of two, or an fp8 pool"
        )
    chosen = plan or default_plan(pool.shape[4], qkv.element_size())
    kernel.launch(
        qkv, pool, query_start_loc, seq_lens, table_rows, block_tables, out, sinks, num_heads=num_heads,
        max_query_len=max_query_len, scale=scale, window=window, soft_cap=soft_cap, kv_scale=kv_scale,
        plan=(chosen.rows, chosen.tile, chosen.warps, chosen.stages), options=pdl_options(pdl),
    )  # fmt: skip


def _check(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    num_heads: int,
) -> None:
    if pool.dim() != 5 or pool.shape[1] != 2 or not pool.is_contiguous():
        raise ValueError(f"pool must be contiguous [num_blocks, 2, G, B, D], got {list(pool.shape)}")
    kv_heads, head_dim = pool.shape[2], pool.shape[4]
    if num_heads % kv_heads or num_heads // kv_heads > 64 or not 16 <= head_dim <= 256:
        raise ValueError(f"{num_heads} heads of {head_dim} over {kv_heads} key/value heads can't run")
    if qkv.shape[1:] != ((num_heads + 2 * kv_heads) * head_dim,) or qkv.stride(1) != 1:
        raise ValueError(f"qkv must have rows of (H + 2 G) * D, got {list(qkv.shape)}")
    if out.shape != (len(qkv), num_heads * head_dim) or out.stride(1) != 1:
        raise ValueError(f"out must be [{len(qkv)}, {num_heads * head_dim}], got {list(out.shape)}")
    if any(x.dtype != torch.int32 for x in (query_start_loc, seq_lens, table_rows, block_tables)):
        raise ValueError("query_start_loc, seq_lens, table_rows and block_tables must be int32")
    if not len(query_start_loc) == len(seq_lens) + 1 == len(table_rows) + 1:
        raise ValueError(
            f"{len(seq_lens)} lengths with {len(query_start_loc)} starts, {len(table_rows)} table rows"
        )
