"""silu_mul: bytes per second."""

from __future__ import annotations

from functools import partial

import torch
from gpu_timing import Report, graph_seconds

from quire_kernels.silu_mul.cases import GateCase
from quire_kernels.silu_mul.op import silu_mul


def main(report: Report, sweep: bool) -> None:
    """A decode batch and a prefill of the 8B shape."""
    del sweep
    for rows in (32, 256, 4096):
        launches = []
        for _ in range(max(4, min(32, 4096 // rows))):
            gate_up = GateCase(rows, 14336).gate_up(torch.bfloat16, "cuda")
            out = torch.empty(rows, 14336, device="cuda", dtype=torch.bfloat16)
            launches.append(partial(silu_mul, gate_up, out, pdl=True))
        report.add("silu_mul", f"{rows} x 14336", graph_seconds(launches), num_bytes=3 * rows * 14336 * 2)
