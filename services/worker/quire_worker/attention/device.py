"""Attention on a GPU as plug-ins: what a backend is asked to compute, what it must do, and how one is found by name.

Entries of the group `quire.attention.device` load a class without constructor arguments that fulfils DeviceAttention.
Everything else of a forward pass (norms, rotary embedding, writing keys and values, sampling) stays the worker's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final, Protocol

import torch

DEVICE_GROUP: Final = "quire.attention.device"
# Libraries whose backends are plug-ins of these names; none of them is built in.
KNOWN_PLUGINS: Final = ("flashinfer", "flash_attn")
_CAPABILITY_OF_FP8: Final = (8, 9)


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What attention must be able to do for a model. block_size: tokens; has_window: some layer sees a window only."""

    device: torch.device
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    has_window: bool


class DeviceAttention(Protocol):
    """Attention over blocks of a pool [num_blocks, 2, G, B, D] (keys and values [B, D] per block and head) in which the
    new tokens' keys and values are already; queries are rotated. H heads, G key and value heads, D head_dim, T tokens,
    S sequences. Launches on the current stream and writes into `out` [T, H * D]. kv_scale: what keys and values of an
    fp8 pool are multiplied by. window: tokens that a token sees, itself included; 0 is all.
    """

    # Whether nothing waits for the device, so that steps can be captured.
    is_capturable: bool

    def refusal(self, needs: AttentionNeeds) -> str:
        """Why it can't do what is needed; empty if it can."""
        ...

    def decode(
        self,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        seq_lens: torch.Tensor,
        table_rows: torch.Tensor,
        block_tables: torch.Tensor,
        out: torch.Tensor,
        *,
        num_heads: int,
        scale: float,
        window: int,
        kv_scale: tuple[float, float],
    ) -> None:
        """One query a sequence, qkv [S, (H + 2 G) * D]; seq_lens int32 [S], 0: a row that pads, its output is 0;
        table_rows int32 [S]: rows of block_tables int32 [rows, blocks]."""
        ...

    def prefill(
        self,
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
        window: int,
        kv_scale: tuple[float, float],
    ) -> None:
        """Runs of queries, causal: sequence s has rows query_start_loc[s] .. query_start_loc[s + 1] of qkv and out."""
        ...


def create_device_attention(name: str, needs: AttentionNeeds) -> DeviceAttention:
    """A plug-in by name. ValueError: it is not installed, can't be loaded, or says why it can't be used."""
    plugins = {entry.name: entry for entry in entry_points(group=DEVICE_GROUP)}
    if name not in plugins:
        names = sorted({"auto", "triton", "torch", *plugins})
        hint = f"; no package that is installed offers it in {DEVICE_GROUP}" if name in KNOWN_PLUGINS else ""
        raise ValueError(f"attention backend {name!r} is not installed, there are {names}{hint}")
    try:
        backend: DeviceAttention = plugins[name].load()()
    except ImportError as error:
        raise ValueError(f"attention backend {name!r} can't be loaded: {error}") from error
    reason = backend.refusal(needs)
    if reason:
        raise ValueError(f"attention backend {name!r} can't be used: {reason}")
    return backend


def triton_refusal(needs: AttentionNeeds) -> str:
    """Why the worker's own kernels can't do what is needed; empty if they can."""
    if needs.device.type != "cuda":
        return f"it can't run on {needs.device}"
    if not 16 <= needs.head_dim <= 256 or needs.head_dim % 2:
        return f"head_dim must be even and within 16..256, got {needs.head_dim}"
    if needs.num_heads // needs.num_kv_heads > 64:
        return f"at most 64 heads may share keys, got {needs.num_heads // needs.num_kv_heads}"
    if needs.kv_dtype == torch.float8_e4m3fn:
        capability = torch.cuda.get_device_capability(needs.device)
        if capability < _CAPABILITY_OF_FP8:
            return f"fp8 keys and values need compute capability 8.9, the device has {capability[0]}.{capability[1]}"
    return ""
