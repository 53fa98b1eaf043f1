"""Holders of fp8 on the device: a weight, and rows of activations, with what each row stands for."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """data: e4m3 [N, K]; scale: float32 [N], of each row; input_scale: float32 [1], the static scale of the activations
    that meet it, or None: each row of activations gets its own."""

    data: torch.Tensor
    scale: torch.Tensor
    input_scale: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.data)

    def wide(self, dtype: torch.dtype) -> torch.Tensor:
        """What it stands for, [N, K]."""
        return (self.data.float() * self.scale[:, None]).to(dtype)


@dataclass(frozen=True, slots=True)
class Fp8Activations:
    """data: e4m3 [T, K]; scale: float32 [T]; dtype: what they were made of."""

    data: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.data)
