"""decode_attention: one new token per sequence, in one launch that may be captured in a CUDA graph."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import torch

from quire_kernels.decode_attention import kernel, kernel_prefix
from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.gpu.rope import Rope

MAX_SPLITS = kernel.MAX_SHARES
# How many programs share a prefix's tokens, by tile of sequences and key head.
PREFIX_SHARES = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """How the work is cut: at most `splits` programs per sequence and key/value head, each of at least
    `split_tokens` tokens, read `tile` at a time by `warps` warps with `stages` tiles in flight."""

    splits: int
    split_tokens: int
    tile: int
    warps: int
    stages: int


class DecodeWorkspace:
    """What splits leave for the one that combines them. One serves all layers: launches on a stream don't overlap in
    it, because each waits for the one before."""

    def __init__(
        self, device: torch.device | str, max_seqs: int, num_heads: int, kv_heads: int, head_dim: int
    ) -> None:
        shares = max_seqs * num_heads * MAX_SPLITS
        self.partial = torch.empty(shares * head_dim, device=device, dtype=torch.float32)
        self.stats = torch.empty(2 * shares, device=device, dtype=torch.float32)
        self.counters = torch.zeros(max_seqs * kv_heads, device=device, dtype=torch.int32)
        self.max_seqs = max_seqs


def default_plan(num_seqs: int, kv_heads: int) -> Plan:
    """A plan by the number of programs that the batch alone gives; measured on one H200."""
    programs = num_seqs * kv_heads
    if programs <= 64:
        # Short contexts, too: a split is one trip to memory, and the next layer's keys are never in the cache.
        return Plan(16, 64, 64, 4, 3)
    if programs <= 256:
        return Plan(4 if programs <= 128 else 2, 256, 64, 2, 3)
    if programs <= 1024:
        return Plan(4, 1024, 64, 2, 5)
    # Few contexts are so long that one program would be late; the programs that find nothing to do cost little.
    return Plan(4, 2048, 64, 4, 3)


def _plan_for(num_seqs: int, kv_heads: int, *, has_prefix: bool) -> Plan:
    plan = default_plan(num_seqs, kv_heads)
    return replace(plan, splits=min(plan.splits, MAX_SPLITS - PREFIX_SHARES)) if has_prefix else plan


def decode_attention(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    num_heads: int,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    rope: Rope | None = None,
    kv_scale: tuple[float, float] = (1.0, 1.0),
    prefix: torch.Tensor | None = None,
    plan: Plan | None = None,
    pdl: bool = False,
) -> None:
    """Attention of each sequence's last token over the sequence, into out [S, H * D].

    qkv: [S, (H + 2 G) * D]; pool: [num_blocks, 2, G, B, D], keys and values both [B, D] per block and head;
    seq_lens: int32 [S], with the new token, 0 for rows that pad a batch (their output is 0); table_rows: int32 [S],
    rows of block_tables int32 [rows, blocks]. rope given: queries and keys in qkv are raw; they are normed and
    rotated here, and the new keys and values are written to the pool. Not given: queries are rotated already, and
    the pool holds the new token. window: a token sees this many tokens, itself included; 0 is all. soft_cap: scores
    become soft_cap * tanh(score / soft_cap); 0 is off. sinks: [H], logits that take part in the softmax only.
    kv_scale: what keys and values of an fp8 pool are multiplied by; (1, 1) where the pool is no fp8.
    prefix, with rope and neither window nor fp8 pool: int32 [2 + 2 * slots], slots >= S: how many tokens some of the
    sequences begin with alike, in the same blocks; how many sequences; their rows, ascending; from 2 + slots on, by row
    how many of its tokens are among them, that is all or 0. Another launch, ahead of it, then reads these tokens once
    for many sequences.
    """
    _check(qkv, pool, seq_lens, table_rows, block_tables, out, num_heads)
    check_device("decode_attention", qkv, pool, seq_lens, table_rows, block_tables, out, sinks)
    if len(seq_lens) > workspace.max_seqs:
        raise ValueError(f"{len(seq_lens)} sequences, the workspace is for {workspace.max_seqs}")
    if len(seq_lens) == 0:
        return
    chosen = plan or _plan_for(len(seq_lens), pool.shape[2], has_prefix=prefix is not None)
    if chosen.splits > MAX_SPLITS:
        raise ValueError(f"splits is at most {MAX_SPLITS}, got {chosen.splits}")
    if prefix is not None:
        _check_prefix(prefix, pool, qkv, rope, num_heads, window, chosen.splits)
    tensors = (None, None, None, None) if rope is None else (rope.cos, rope.sin, rope.q_norm, rope.k_norm)
    eps = 0.0 if rope is None else rope.eps
    if prefix is not None:
        kernel_prefix.launch(
            qkv, pool, seq_lens, table_rows, block_tables, prefix, (workspace.partial, workspace.stats), tensors,
            num_heads=num_heads, scale=scale, soft_cap=soft_cap, eps=eps,
            shares=(chosen.splits, PREFIX_SHARES, MAX_SPLITS), options=pdl_options(pdl),
        )  # fmt: skip
    kernel.launch(
        qkv, pool, seq_lens, table_rows, block_tables, out,
        (workspace.partial, workspace.stats, workspace.counters), tensors, sinks, num_heads=num_heads, scale=scale,
        window=window, soft_cap=soft_cap, eps=eps, kv_scale=kv_scale, prefix=prefix,
        prefix_shares=0 if prefix is None else PREFIX_SHARES, prefix_tile=kernel_prefix.TILE,
        plan=astuple(chosen), options=pdl_options(pdl),
    )  # fmt: skip


def _check_prefix(
    prefix: torch.Tensor,
    pool: torch.Tensor,
    qkv: torch.Tensor,
    rope: Rope | None,
    num_heads: int,
    window: int,
    splits: int,
) -> None:
    if rope is None or window or pool.dtype != qkv.dtype or num_heads // pool.shape[2] > kernel_prefix.ROWS:
        raise ValueError("a shared prefix goes with rope, no window and a pool of the projections' type")
    if prefix.dtype != torch.int32 or len(prefix) < 2 + 2 * len(qkv):
        raise ValueError(
            f"prefix must be int32 with room for {len(qkv)} rows, got {prefix.dtype} {len(prefix)}"
        )
    if splits + PREFIX_SHARES > MAX_SPLITS:
        raise ValueError(f"with a shared prefix splits is at most {MAX_SPLITS - PREFIX_SHARES}, got {splits}")


def _check(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    seq_lens: torch.Tensor,
    table_rows: torch.Tensor,
    block_tables: torch.Tensor,
    out: torch.Tensor,
    num_heads: int,
) -> None:
    if pool.dim() != 5 or pool.shape[1] != 2 or not pool.is_contiguous():
        raise ValueError(f"pool must be contiguous [num_blocks, 2, G, B, D], got {list(pool.shape)}")
    kv_heads, head_dim = pool.shape[2], pool.shape[4]
    if num_heads % kv_heads or not 16 <= head_dim <= 256 or head_dim % 2:
        raise ValueError(f"{num_heads} heads of {head_dim} over {kv_heads} key/value heads can't run")
    if qkv.shape[1:] != ((num_heads + 2 * kv_heads) * head_dim,) or qkv.stride(1) != 1:
        raise ValueError(f"qkv must have rows of (H + 2 G) * D, got {list(qkv.shape)}")
    if out.shape != (len(qkv), num_heads * head_dim) or out.stride(1) != 1:
        raise ValueError(f"out must be [{len(qkv)}, {num_heads * head_dim}], got {list(out.shape)}")
    if any(tensor.dtype != torch.int32 for tensor in (seq_lens, table_rows, block_tables)):
        raise ValueError("seq_lens, table_rows and block_tables must be int32")
    if not len(qkv) == len(seq_lens) == len(table_rows):
        raise ValueError(f"{len(qkv)} rows with {len(seq_lens)} lengths and {len(table_rows)} table rows")
    if block_tables.dim() != 2 or block_tables.stride(1) != 1:
        raise ValueError("block_tables must be a matrix with contiguous rows")
