"""Rope: what rotates queries and keys, and norms them where the model does."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rope:
    """cos, sin: float32 [positions, D / 2], halves paired. q_norm, k_norm: [D], both or neither; with them every head
    is RMS-normed with eps before it is rotated."""

    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        if (
            self.cos.dtype != torch.float32
            or self.sin.dtype != torch.float32
            or self.cos.shape != self.sin.shape
        ):
            raise ValueError(
                f"cos and sin must be float32 of one shape, got {self.cos.dtype} {list(self.cos.shape)}"
            )
        if not self.cos.is_contiguous() or not self.sin.is_contiguous():
            raise ValueError("cos and sin must be contiguous")
        if (self.q_norm is None) != (self.k_norm is None):
            raise ValueError("q_norm and k_norm are given together or not at all")
