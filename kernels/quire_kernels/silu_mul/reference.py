"""silu_mul in plain torch and float64."""

from __future__ import annotations

import torch


def silu_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """See op.silu_mul. -> [T, I] in float64."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
