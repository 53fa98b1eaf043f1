"""Tables of cosines and sines for a RopeSpec, computed as transformers computes them: in float32."""

from __future__ import annotations

import math

import torch

from quire_worker.models.spec import RopeSpec


def rope_tables(rope: RopeSpec, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin: float32 [num_positions, head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = _scaled(1.0 / (rope.theta**exponents), rope)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return angles.cos().contiguous(), angles.sin().contiguous()


def _scaled(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "factors":
        if len(rope.factors) != len(frequencies):
            raise ValueError(f"{len(rope.factors)} rope factors for {len(frequencies)} frequencies")
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32)
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between blended."""
    original = rope.original_max_position
    wavelengths = 2 * math.pi / frequencies
    ramp = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - ramp) * frequencies / rope.factor + ramp * frequencies
    stretched = torch.where(wavelengths > original / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(wavelengths < original / rope.high_freq_factor, frequencies, stretched)
