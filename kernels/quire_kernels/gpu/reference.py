"""Attention over blocks, rotation and head norms in plain torch and float64: what the Triton kernels must equal."""

from __future__ import annotations

import torch

from quire_kernels.gpu.rope import Rope


def rotate_reference(
    heads: torch.Tensor, rope: Rope, position: int, norm: torch.Tensor | None
) -> torch.Tensor:
    """heads [n, D] of the token at a position, normed and rotated, in float64."""
    wide = heads.double()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + rope.eps) * norm.double()
    first, second = wide.chunk(2, dim=-1)
    cos, sin = rope.cos[position].double(), rope.sin[position].double()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def held(values: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """float64 keys or values as a pool of dtype holds them: in fp8 divided by their scale and kept within its range."""
    if dtype == torch.float8_e4m3fn:
        values = (values / scale).clamp(-448.0, 448.0).float()
    return values.to(dtype)


def attend_reference(
    queries: torch.Tensor,
    pool: torch.Tensor,
    table: torch.Tensor,
    length: int,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    kv_scale: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    """queries [t, H, D], the last t tokens of a sequence of `length` -> [t, H, D], float64.

    pool: [num_blocks, 2, G, B, D]; table: the sequence's block ids.
    """
    _, _, kv_heads, block_size, _ = pool.shape
    shared = queries.shape[1] // kv_heads
    ids = table[: -(-length // block_size)].long()
    positions = torch.arange(length - len(queries), length, device=pool.device)[:, None]
    keys_at = torch.arange(length, device=pool.device)[None]
    hidden = keys_at > positions
    if window:
        hidden |= keys_at <= positions - window
    out = torch.empty(queries.shape, dtype=torch.float64, device=queries.device)
    for head in range(queries.shape[1]):
        keys, values = (pool[ids, part, head // shared].flatten(0, 1)[:length].double() for part in (0, 1))
        keys, values = keys * kv_scale[0], values * kv_scale[1]
        scores = queries[:, head].double() @ keys.T * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat([scores, sinks[head].double().expand(len(scores), 1)], dim=1)
        out[:, head] = torch.softmax(scores, dim=-1)[:, :length] @ values
    return out
