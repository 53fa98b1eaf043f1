"""skinny_linear: a weight times a few rows, with a residual or a gate in the same launch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from quire_kernels.gpu.launch import check_device, pdl_options
from quire_kernels.skinny_linear import kernel

MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """outs: outputs of a program; chunk: inputs read at a time; splits of the inputs; warps; stages in flight."""

    outs: int
    chunk: int
    splits: int
    warps: int
    stages: int


class SkinnyWorkspace:
    """What splits leave for the one that adds them up. One serves all launches of a stream."""

    def __init__(
        self, device: torch.device | str, num_floats: int = 1 << 24, num_tiles: int = 1 << 14
    ) -> None:
        self.partial = torch.empty(num_floats, device=device, dtype=torch.float32)
        self.counters = torch.zeros(num_tiles, device=device, dtype=torch.int32)


def default_plan(num_outputs: int, num_inputs: int, gated: bool) -> Plan:
    """The fastest of those measured on one H200 for 32 rows through the projections of an 8B decoder: one program for
    nearly every multiprocessor, and no more splits than that takes."""
    tiles = -(-num_outputs // 64)
    chunks = -(-num_inputs // 128)
    splits = 1
    while tiles * splits < 96 and splits < 16 and chunks >= 4 * splits:
        splits *= 2
    return Plan(64, 128, splits, 4, 3 if num_outputs > 65536 else 4)


def scaled_plan(num_outputs: int, num_inputs: int, gated: bool) -> Plan:
    """As default_plan, for fp8 weights and 32 rows. Half the bytes, so that what is read of x weighs twice as much."""
    if gated:
        return Plan(64, 256, 1, 4, 3)
    outs, chunk = (64, 256) if num_inputs > 8192 else (64, 128) if num_outputs > 4096 else (128, 128)
    tiles, chunks, splits = -(-num_outputs // outs), -(-num_inputs // chunk), 1
    while tiles * splits < (256 if num_outputs > 4096 else 120) and splits < 16 and chunks >= 4 * splits:
        splits *= 2
    return Plan(outs, chunk, splits, 4, 4)


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    workspace: SkinnyWorkspace,
    *,
    scale: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    plan: Plan | None = None,
    pdl: bool = False,
) -> None:
    """out [m, N] = x [m, K] W^T + bias + residual, for 1 <= m <= MAX_ROWS.

    weight: [N, K], contiguous along K. gated: weight is [2 N, K], gate above up, and the product becomes
    silu(gate) * up. residual [m, N] may be out itself. out may be of another floating type than x, and is
    cut to float16's range. scale [rows of weight], float32: what each row of an fp8 weight stands for. Sums are
    float32.
    """
    rows, num_inputs = x.shape
    num_outputs = out.shape[1]
    if not 1 <= rows <= MAX_ROWS or len(out) != rows or weight.shape[1] != num_inputs:
        raise ValueError(
            f"x {list(x.shape)}, weight {list(weight.shape)}, out {list(out.shape)}: 1 to {MAX_ROWS} rows"
        )
    if weight.shape[0] != num_outputs * (2 if gated else 1):
        raise ValueError(f"weight {list(weight.shape)} does not give {num_outputs} outputs, gated {gated}")
    if any(tensor is not None and tensor.stride(1) != 1 for tensor in (x, weight, out, residual)):
        raise ValueError("rows of x, weight, out and residual must be contiguous")
    if scale is not None and (scale.dtype != torch.float32 or scale.shape != weight.shape[:1]):
        raise ValueError(f"scale must be float32 [{len(weight)}], got {scale.dtype} {list(scale.shape)}")
    check_device("skinny_linear", x, weight, out, scale, residual, bias)
    plans = default_plan if scale is None else scaled_plan
    chosen = plan or plans(num_outputs, num_inputs, gated)
    if plan is None and x.element_size() == 4:
        # Plans are for 16 bits; wider ones would not fit a multiprocessor.
        chosen = replace(chosen, chunk=64, stages=2)
    tiles = -(-num_outputs // chosen.outs)
    padded = kernel.padded_rows(rows, is_scaled=scale is not None)
    floats = chosen.splits * tiles * chosen.outs * padded * (2 if gated else 1)
    if chosen.splits > 1 and (floats > len(workspace.partial) or tiles > len(workspace.counters)):
        raise ValueError(f"the workspace holds {len(workspace.partial)} numbers, {floats} are needed")
    kernel.launch(
        x, weight, out, scale, residual, bias, (workspace.partial, workspace.counters), gated=gated,
        plan=(chosen.outs, chosen.chunk, chosen.splits, chosen.warps, chosen.stages), options=pdl_options(pdl),
    )  # fmt: skip
