"""linear, gated_linear: x W^T on packed weights. CPU kernels where they can be compiled."""

from __future__ import annotations

import numpy as np
import torch

from quire_kernels.cpu.environment import has_compiler
from quire_kernels.linear.reference import gated_linear_reference, linear_reference
from quire_kernels.linear.rows import WeightRows


def linear(
    x: torch.Tensor, weight: WeightRows, bias: torch.Tensor | None = None, *, use_amx: bool | None = None
) -> torch.Tensor:
    """x [rows, k] float32 on the CPU -> x W^T + bias, [rows, n]. Packs the weight anew at every call: programs that
    call it often pack once and `bind`. use_amx: whether quantised weights go to matrix tiles; None is if there are
    any, True without them a ValueError."""
    _check(x, weight)
    if not has_compiler():
        return linear_reference(x, weight, bias)
    from quire_kernels.linear import cpu
    from quire_kernels.linear.packing import pack

    packed = pack([weight])
    padded = None if bias is None else np.pad(bias.numpy(), (0, packed.padded_outputs - weight.num_outputs))
    return _run(x, packed, weight.num_outputs, cpu.STORE, padded, use_amx)


def gated_linear(x: torch.Tensor, gate: WeightRows, up: WeightRows) -> torch.Tensor:
    """x [rows, k] float32 on the CPU -> silu(x G^T) * (x U^T), [rows, n]."""
    _check(x, gate)
    _check(x, up)
    if not has_compiler():
        return gated_linear_reference(x, gate, up)
    from quire_kernels.linear import cpu
    from quire_kernels.linear.packing import pack_gated

    return _run(x, pack_gated(gate, up), gate.num_outputs, cpu.GATED_SILU, None, None)


def _check(x: torch.Tensor, weight: WeightRows) -> None:
    if x.dim() != 2 or x.dtype != torch.float32 or x.device.type != "cpu":
        raise ValueError(
            f"x must be a float32 matrix on the CPU, got {x.dtype} {list(x.shape)} on {x.device}"
        )
    if x.shape[1] != weight.num_inputs:
        raise ValueError(f"x has {x.shape[1]} columns, the weight {weight.num_inputs} inputs")


def _run(
    x: torch.Tensor, packed: object, num_outputs: int, epilogue: int, bias: object, use_amx: bool | None
) -> torch.Tensor:
    from quire_kernels.cpu.memory import zeros
    from quire_kernels.cpu.target import TARGET
    from quire_kernels.cpu.team import Program, available_cores
    from quire_kernels.linear.packing import PackedLinear
    from quire_kernels.linear.steps import LinearSteps

    assert isinstance(packed, PackedLinear)
    rows = len(x)
    source = zeros((rows + TARGET.max_tile_rows, packed.num_inputs), np.float32)
    source[:rows] = x.numpy()
    out = zeros((rows + TARGET.max_tile_rows, packed.padded_outputs), np.float32)
    products = LinearSteps(rows, packed.num_inputs, available_cores(), use_amx=use_amx)
    count = np.array([rows], dtype=np.int64)
    steps = products.bind(packed, source, out, count, epilogue=epilogue, bias=bias)  # type: ignore[arg-type]
    Program(steps, available_cores()).run()
    return torch.from_numpy(out[:rows, :num_outputs].copy())
