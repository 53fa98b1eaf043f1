"""What an attention backend is given and what it must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Of one step, on the device. query_start_loc int32 [S + 1], seq_lens int32 [S], block_tables int32 [S, blocks],
    slot_mapping int64 [T]; the same numbers on the host in query_starts and lengths, so that no backend need wait."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    query_starts: list[int]
    lengths: list[int]


class AttentionBackend(Protocol):
    """Writes keys and values into blocks and attends over them. Stateless between calls."""

    def write(
        self, keys: torch.Tensor, values: torch.Tensor, pool: torch.Tensor, inputs: AttentionInputs
    ) -> None:
        """Store keys and values [T, kv heads, head_dim] at inputs.slot_mapping in a layer's pool (kv_cache.py)."""
        ...

    def attend(
        self, queries: torch.Tensor, pool: torch.Tensor, inputs: AttentionInputs, *, scale: float, window: int
    ) -> torch.Tensor:
        """queries [T, heads, head_dim], the last of each sequence's tokens -> [T, heads * head_dim], causal.

        window: how many tokens a token sees, itself included; 0 is all.
        """
        ...
